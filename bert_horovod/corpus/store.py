"""The token store: a directory with `manifest.json`, `vocab.txt` and shards of flat, memory-mapped arrays.

    store/
        manifest.json
        vocab.txt
        shard-00000/
            tokens.npy            uint16 (uint32 when the vocabulary needs it) [tokens]
            sentences.npy         uint32 [sentences + 1]   sentence i is tokens[sentences[i]:sentences[i + 1]]
            sections.npy          uint32 [sections + 1]    section i is sentences sections[i] to sections[i + 1]
            documents.npy         uint32 [documents + 1]   document i is sections documents[i] to documents[i + 1]
            held_out.npy          bool   [sections]        true: never trained on
            document_hashes.npy   uint64 [documents, 2]    first 128 bits of the SHA-256 of the document's text
            titles.npy            uint8  [bytes]           UTF-8: each document's title, where it has one, and "\\n"
            part.json             how the shard was made (see parts.py)
        duplicates.npy            int64  [duplicates]      documents, counted over all shards, that repeat an earlier
                                                           one, ascending; only where there are any

No sentence and no document is empty, none spans two shards. No masks, no padding and no special tokens are stored.
The manifest holds counts, SHA-256 of every shard, the vocabulary's hash, the sources and the settings; no times,
hosts or absolute paths, so that the same input gives the same bytes.
"""

import hashlib
import json
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_horovod.disk import write_atomically
from bert_horovod.errors import UserError

FORMAT = 2
ARRAYS = ("tokens", "sentences", "sections", "documents", "held_out", "document_hashes", "titles")
COUNTS = ("documents", "sections", "sentences", "tokens", "bytes")


@dataclass(frozen=True)
class Shard:
    """One shard's arrays, as the module's docstring states them."""

    tokens: np.ndarray
    sentences: np.ndarray
    sections: np.ndarray
    documents: np.ndarray
    held_out: np.ndarray
    document_hashes: np.ndarray
    titles: np.ndarray


@dataclass(frozen=True)
class Store:
    """An opened token store; its arrays are mapped, not read."""

    path: Path
    manifest: dict[str, Any]
    shards: list[Shard]
    vocabulary: list[str]
    duplicates: np.ndarray  # int64, ascending: documents, counted over all shards, that repeat an earlier one

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the manifest, which holds the hashes of everything else."""
        return _hash_text(_manifest_text(self.manifest))


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The narrowest dtype that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def write_shard(directory: Path, shard: Shard, text_bytes: int) -> dict[str, Any]:
    """Write a shard's arrays into a new directory and sync them; return its entry in the manifest."""
    directory.mkdir()
    for name in ARRAYS:
        with open(directory / f"{name}.npy", "wb") as file:
            _write_array(file, getattr(shard, name))
            file.flush()
            os.fsync(file.fileno())
    counts = (
        len(shard.documents) - 1,
        len(shard.sections) - 1,
        len(shard.sentences) - 1,
        len(shard.tokens),
        text_bytes,
    )
    return {"name": directory.name, **dict(zip(COUNTS, map(int, counts), strict=True)), "sha256": hash_shard(directory)}


def _write_array(file: BinaryIO, array: np.ndarray) -> None:
    # As np.save does, whose OSError on a full disk has no errno.
    array = np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.data)


def write_duplicates(store: Path, documents: np.ndarray) -> str | None:
    """Write the numbers of the documents that repeat others, if there are any; return the file's SHA-256."""
    file = store / "duplicates.npy"
    file.unlink(missing_ok=True)
    if not len(documents):
        return None
    with open(file, "wb") as content:
        _write_array(content, np.asarray(documents, np.int64))
        content.flush()
        os.fsync(content.fileno())
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_manifest(store: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, last of all and in one move: a store without it is not finished."""
    write_atomically(store / "manifest.json", _manifest_text(manifest))


def open_store(path: str | Path) -> Store:
    """Open a token store and check its shape (not its hashes: see verify); raises UserError."""
    path = Path(path)
    manifest = _read_manifest(path)
    try:
        vocabulary_text = (path / "vocab.txt").read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path / 'vocab.txt'}: {error.strerror}; prepare the data again") from error
    if _hash_text(vocabulary_text) != manifest["vocabulary"]["sha256"]:
        raise UserError(
            f"{path / 'vocab.txt'} is not the vocabulary that the store was made with; prepare the data again"
        )
    _allow_open_files(len(ARRAYS) * len(manifest["shards"]))
    return Store(
        path,
        manifest,
        [open_shard(path, entry) for entry in manifest["shards"]],
        vocabulary_text.rstrip("\n").split("\n"),
        _read_duplicates(path, manifest),
    )


def verify(path: str | Path) -> Store:
    """Open a store, compare shards with their hashes, check their arrays; raises UserError that names damaged ones."""
    path = Path(path)
    damaged = [
        entry["name"]
        for entry in _read_manifest(path)["shards"]
        if not (path / entry["name"]).is_dir() or hash_shard(path / entry["name"]) != entry["sha256"]
    ]
    if damaged:
        raise UserError(
            f"{path}: damaged shards: {', '.join(damaged)}; their content does not match the manifest's "
            "SHA-256. Run the same prepare command again: it makes the damaged shards anew"
        )
    store = open_store(path)
    for entry, shard in zip(store.manifest["shards"], store.shards, strict=True):
        problem = shard_problem(shard, len(store.vocabulary))
        if problem:
            raise UserError(
                f"{path / entry['name']} is damaged: {problem}; remove the store and prepare the data again"
            )
    return store


def shard_problem(shard: Shard, vocabulary_size: int) -> str | None:
    """What is wrong with a shard's arrays, or None: dtypes, offsets that rise from 0 to the end, ids in range."""
    for name, kind in (
        ("tokens", token_dtype(vocabulary_size)),
        ("sentences", np.uint32),
        ("sections", np.uint32),
        ("documents", np.uint32),
        ("held_out", np.bool_),
        ("document_hashes", np.uint64),
        ("titles", np.uint8),
    ):
        if getattr(shard, name).dtype != kind:
            return f"{name} are {getattr(shard, name).dtype}, expected {np.dtype(kind)}"
    ends = {"sentences": len(shard.tokens), "sections": len(shard.sentences) - 1, "documents": len(shard.sections) - 1}
    for name, end in ends.items():
        offsets = np.asarray(getattr(shard, name))
        if (
            offsets.ndim != 1
            or not len(offsets)
            or offsets[0] != 0
            or offsets[-1] != end
            or np.any(offsets[1:] <= offsets[:-1])
        ):
            return f"the offsets in {name} do not rise from 0 to {end}"
    if shard.held_out.shape != (len(shard.sections) - 1,) or shard.document_hashes.shape != (
        len(shard.documents) - 1,
        2,
    ):
        return "held_out or document_hashes have another length than sections and documents"
    if np.count_nonzero(np.asarray(shard.titles) == ord("\n")) != len(shard.documents) - 1:
        return "there is not one title a document"
    if len(shard.tokens) and shard.tokens.max() >= vocabulary_size:
        return f"the token id {shard.tokens.max()} is outside of the vocabulary of {vocabulary_size}"
    return None


def hash_shard(directory: Path) -> str:
    """SHA-256, in hexadecimal, over a shard's files in a fixed order; missing files count as empty."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        file = directory / f"{name}.npy"
        size = file.stat().st_size if file.exists() else 0
        digest.update(f"{name} {size}\n".encode())
        if size:
            with open(file, "rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path} is not a token store: cannot read manifest.json ({error.strerror}); "
            "make one with: bert-horovod prepare"
        ) from error
    except ValueError as error:
        raise UserError(f"{path / 'manifest.json'} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path / 'manifest.json'}: expected a token store of format {FORMAT}; prepare the data again")
    kinds = {"vocabulary": dict, "settings": dict, "sources": list, "shards": list, "totals": dict}
    missing = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    if missing or not all(
        isinstance(entry, dict) and {"name", "sha256", *COUNTS} <= entry.keys() for entry in manifest["shards"]
    ):
        raise UserError(
            f"{path / 'manifest.json'} is damaged: {', '.join(missing) or 'shards'} missing or incomplete; "
            "prepare the data again"
        )
    return manifest


def _read_duplicates(path: Path, manifest: dict[str, Any]) -> np.ndarray:
    expected = manifest.get("duplicates", {}).get("sha256")
    if expected is None:
        return np.zeros(0, np.int64)
    file = path / "duplicates.npy"
    try:
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise UserError(f"{file} is damaged; run the same prepare command again: it makes it anew")
        return np.load(file, allow_pickle=False)
    except OSError as error:
        raise UserError(
            f"cannot read {file}: {error.strerror}; run the same prepare command again: it makes it anew"
        ) from error


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files if need be: a mapped file keeps a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def open_shard(path: Path, entry: dict[str, Any]) -> Shard:
    """Map a shard's arrays, by its entry in the manifest; raises UserError."""
    arrays = {}
    for name in ARRAYS:
        file = path / entry["name"] / f"{name}.npy"
        try:
            # An empty array cannot be mapped.
            arrays[name] = np.load(file, mmap_mode="r" if entry["tokens"] else None, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(
                f"{file} is missing or damaged ({error}); see which shards with: bert-horovod verify --data_dir {path}"
            ) from error
    shard = Shard(**arrays)
    expected = tuple(entry[count] for count in COUNTS[:4])
    found = (len(shard.documents) - 1, len(shard.sections) - 1, len(shard.sentences) - 1, len(shard.tokens))
    if found != expected:
        raise UserError(
            f"{path / entry['name']} is damaged: {', '.join(COUNTS[:4])} are {found}, the manifest says "
            f"{expected}; "
            "run the same prepare command again: it makes the damaged shards anew"
        )
    return shard


def _manifest_text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
