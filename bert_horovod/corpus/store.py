"""The token store: a directory with `manifest.json`, the tokenizer and shards of flat, memory-mapped arrays.

    store/
        manifest.json
        vocab.txt                 the WordPiece vocabulary, or
        tokenizer.json            a tokenizer of another kind (see JsonTokenizer)
        shard-00000/
            tokens.npy            uint16 (uint32 when the vocabulary needs it) [tokens]
            sentences.npy         uint32 [sentences + 1]   sentence i is tokens[sentences[i]:sentences[i + 1]]
            sections.npy          uint32 [sections + 1]    section i is sentences sections[i] to sections[i + 1]
            documents.npy         uint32 [documents + 1]   document i is sections documents[i] to documents[i + 1]
            held_out.npy          bool   [sections]        true: never trained on
            document_hashes.npy   uint64 [documents, 2]    first 128 bits of the SHA-256 of the document's text
            titles.npy            uint8  [bytes]           UTF-8, a line for each document: its title, or nothing
            part.json             how the shard was made (see parts.py)
        duplicates.npy            int64  [duplicates]      documents, counted over all shards, that repeat an earlier
                                                           one, ascending; no file if there are none

No sentence and no document is empty, none lies in two shards. No masks, no padding and no special tokens are stored.
The manifest holds counts, SHA-256 of every shard, the vocabulary's hash, the sources and the settings; no times,
hosts or absolute paths, so that the same input gives the same bytes.
"""

import hashlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import COUNTS, manifest_text, read_manifest
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings, recorded_settings
from bert_horovod.errors import DamagedData, damaged, unreadable
from bert_horovod.storage.reading import hash_file, load_array, open_regular, read_text
from bert_horovod.storage.writing import write_atomically

VOCABULARY_FILE, TOKENIZER_FILE = "vocab.txt", "tokenizer.json"
ARRAYS = ("tokens", "sentences", "sections", "documents", "held_out", "document_hashes", "titles")


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
    """An opened token store; its arrays are memory-mapped, not loaded."""

    path: Path
    manifest: dict[str, Any]
    shards: list[Shard]
    vocabulary: list[str]
    duplicates: np.ndarray  # int64, ascending: documents, counted over all shards, that repeat an earlier one
    tokenizer_settings: TokenizerSettings  # how its text was normalised and cut

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the manifest, which holds the hashes of everything else."""
        return _hash_text(manifest_text(self.manifest))


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The narrowest dtype that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def write_shard(directory: Path, shard: Shard, text_bytes: int) -> dict[str, Any]:
    """Write a shard's arrays into a new directory and sync them; return its entry in the manifest."""
    directory.mkdir()
    for name in ARRAYS:
        write_array(directory / f"{name}.npy", getattr(shard, name))
    counts = (
        len(shard.documents) - 1,
        len(shard.sections) - 1,
        len(shard.sentences) - 1,
        len(shard.tokens),
        text_bytes,
    )
    return {"name": directory.name, **dict(zip(COUNTS, map(int, counts), strict=True)), "sha256": hash_shard(directory)}


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as a .npy file, and sync it."""
    # The same bytes as from np.save, but np.save's OSError on a full disk has no errno.
    array = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
        file.flush()
        os.fsync(file.fileno())


def write_duplicates(store: Path, documents: np.ndarray) -> str | None:
    """Write the numbers of the documents that repeat others, if there are any; return the file's SHA-256."""
    file = store / "duplicates.npy"
    file.unlink(missing_ok=True)
    if not len(documents):
        return None
    write_array(file, np.asarray(documents, np.int64))
    return hash_file(file)


def write_manifest(store: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest atomically, after all other files: a store without a manifest is not finished."""
    write_atomically(store / "manifest.json", manifest_text(manifest))


def open_store(path: str | Path) -> Store:
    """Open a token store and check its structure (not the shards' hashes: see verify); raises ReportedError."""
    path = Path(path)
    return _open_store(path, read_manifest(path))


def _open_store(path: Path, manifest: dict[str, Any]) -> Store:
    vocabulary, settings = _read_tokenizer(path, manifest["vocabulary"])
    _allow_open_files(len(ARRAYS) * len(manifest["shards"]))
    shards = [open_shard(path, shard_entry, len(vocabulary)) for shard_entry in manifest["shards"]]
    return Store(path, manifest, shards, vocabulary, _read_duplicates(path, manifest), settings)


def _read_tokenizer(path: Path, recorded: dict[str, Any]) -> tuple[list[str], TokenizerSettings]:
    """The vocabulary of a store, and how its text was cut; `recorded`: what the manifest says about them."""
    of_json = recorded.get("tokenizer", {}).get("sha256")
    file = path / (TOKENIZER_FILE if of_json else VOCABULARY_FILE)
    try:
        text = read_text(file, inside=path)
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(error, file, "prepare the data again") from error
    right = _hash_text(text) == (of_json or recorded["sha256"])
    settings = recorded_settings(recorded, text if right else "")
    if right and isinstance(settings, JsonTokenizer):
        vocabulary = settings.facts.vocabulary
    else:
        vocabulary = text.rstrip("\n").split("\n")
    if not right or len(vocabulary) != recorded["size"]:
        raise DamagedData(f"{file} is not the vocabulary that the store was made with; prepare the data again")
    return vocabulary, settings


def verify(path: str | Path) -> Store:
    """Open a store and compare all files with their hashes; raises DamagedData that names damaged shards."""
    path = Path(path)
    manifest = read_manifest(path)
    damaged_shards = [
        shard_entry["name"]
        for shard_entry in manifest["shards"]
        if _is_damaged(path, shard_entry, manifest["vocabulary"]["size"])
    ]
    if damaged_shards:
        raise DamagedData(
            f"{path}: damaged shards: {', '.join(damaged_shards[:20])}; their content is not what the manifest "
            "says. Run the same prepare command again: it makes the damaged shards anew"
        )
    return _open_store(path, manifest)


def _is_damaged(path: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> bool:
    try:
        open_shard(path, shard_entry, vocabulary_size)  # before the hash: a damaged file may be sparse, of terabytes
        return hash_shard(path / shard_entry["name"]) != shard_entry["sha256"]
    except DamagedData:
        return True
    except OSError as error:
        if reported := unreadable(error, error.filename or path / shard_entry["name"]):
            raise reported from error
        return True


def hash_shard(directory: Path) -> str:
    """SHA-256, in hexadecimal, over a shard's files in a fixed order; missing files count as empty."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        file = directory / f"{name}.npy"
        size = file.stat().st_size if file.is_file() else 0
        digest.update(f"{name} {size}\n".encode())
        if size:
            with open_regular(file) as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _read_duplicates(path: Path, manifest: dict[str, Any]) -> np.ndarray:
    recorded = manifest["duplicates"]
    if recorded["sha256"] is None:
        return np.zeros(0, np.int64)
    file = path / "duplicates.npy"
    try:
        duplicates = load_array(file, np.int64, (recorded["documents"],), inside=path)
        if hash_file(file) != recorded["sha256"]:
            raise ValueError("its SHA-256 is another")
    except (OSError, ValueError) as error:
        raise damaged(error, file, "run the same prepare command again: it makes it anew") from error
    return duplicates


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files if needed, because each memory-mapped file keeps a descriptor open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted_files = count + 1024
    if soft < wanted_files:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted_files if hard == resource.RLIM_INFINITY else min(wanted_files, hard), hard)
        )


def open_shard(path: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> Shard:
    """Memory-map the arrays of the shard of a manifest entry, and check all but the token ids; raises DamagedData."""
    shapes: dict[str, tuple[type | np.dtype, tuple[int | None, ...]]] = {
        "tokens": (token_dtype(vocabulary_size), (shard_entry["tokens"],)),
        "sentences": (np.uint32, (shard_entry["sentences"] + 1,)),
        "sections": (np.uint32, (shard_entry["sections"] + 1,)),
        "documents": (np.uint32, (shard_entry["documents"] + 1,)),
        "held_out": (np.bool_, (shard_entry["sections"],)),
        "document_hashes": (np.uint64, (shard_entry["documents"], 2)),
        "titles": (np.uint8, (None,)),
    }
    arrays = {}
    for name, (dtype, shape) in shapes.items():
        file = path / shard_entry["name"] / f"{name}.npy"
        try:
            arrays[name] = load_array(file, dtype, shape, inside=path)
        except (OSError, ValueError) as error:
            mend = f"see which shards with: bert-horovod verify --data_dir {path}"
            raise damaged(error, file, mend) from error
    shard = Shard(**arrays)
    problem = shard_problem(shard)
    if problem:
        raise DamagedData(
            f"{path / shard_entry['name']} is damaged: {problem}; "
            "run the same prepare command again: it makes the damaged shards anew"
        )
    return shard


def shard_problem(shard: Shard) -> str | None:
    """Describe the first error in a shard's arrays, or return None.

    Offsets must rise from 0 to the end, held_out must be true or false, and each document must have one title.
    """
    ends = {"sentences": len(shard.tokens), "sections": len(shard.sentences) - 1, "documents": len(shard.sections) - 1}
    for name, end in ends.items():
        offsets = getattr(shard, name)
        if offsets[0] != 0 or offsets[-1] != end or np.any(offsets[1:] <= offsets[:-1]):
            return f"the offsets in {name} do not rise from 0 to {end}"
    if shard.held_out.view(np.uint8).max(initial=0) > 1:  # NumPy counts other values wrongly and then copies too much
        return "held_out has values other than true and false"
    if np.count_nonzero(shard.titles == ord("\n")) != len(shard.documents) - 1:
        return "there is not one title a document"
    return None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
