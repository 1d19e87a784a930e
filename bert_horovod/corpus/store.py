"""The token store: a directory with `manifest.json`, the tokenizer and shards, each one file of arrays.

    store/
        manifest.json
        vocab.txt                 the WordPiece vocabulary, or
        tokenizer.json            a tokenizer of another kind (see JsonTokenizer)
        shard-00000.safetensors   see shard.py; up to about a thousand, which are larger the more text there is
        sources.jsonl             a line for each file of the input: name, bytes, SHA-256, counts
        duplicates.npy            int64  [duplicates]      documents, counted over all shards, that repeat an earlier
                                                           one, ascending; no file if there are none

The manifest holds counts, SHA-256 of every shard and file, where a shard's arrays begin, and the settings; no times,
hosts or absolute paths, so that the same input gives the same bytes. Its `text` is the sum of the documents' hashes.
Opening a store reads the manifest and the tokenizer alone.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import SOURCES_FILE, SourceEntry, manifest_text, read_manifest
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings, recorded_settings
from bert_horovod.corpus.shard import Shard, file_bytes, map_shard, shard_file
from bert_horovod.errors import DamagedData, damaged, unreadable
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import (
    VOCABULARY_BYTES,
    check_type,
    hash_file,
    load_array,
    open_regular,
    parse_json,
    read_text,
)
from bert_horovod.storage.writing import write_atomically

VOCABULARY_FILE, TOKENIZER_FILE = "vocab.txt", "tokenizer.json"
_AGAIN = "run the same prepare command again: it makes it anew"


class DamagedShards(DamagedData):
    """The content of shards is not what the manifest says; `names`: theirs."""

    def __init__(self, path: Path, names: list[str]) -> None:
        super().__init__(
            f"{path}: damaged shards: {', '.join(names[:20])}; their content is not what the manifest "
            "says. Run the same prepare command again: it makes the damaged shards anew"
        )
        self.names = names


class Shards(Sequence[Shard]):
    """The shards of a store by number: each access maps the shard's file and checks it, as map_shard says."""

    def __init__(self, store: Path, manifest: dict[str, Any]) -> None:
        self._store, self._entries = store, manifest["shards"]
        self._vocabulary_size = manifest["vocabulary"]["size"]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> Shard:  # type: ignore[override]  # no slices
        return map_shard(self._store, self._entries[number], self._vocabulary_size)


@dataclass(frozen=True)
class Store:
    """An opened token store; what is not read at once is mapped or read where it is asked for."""

    path: Path
    manifest: dict[str, Any]
    shards: Sequence[Shard]
    vocabulary: list[str]
    tokenizer_settings: TokenizerSettings  # how its text was normalised and cut

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the manifest, which holds the hashes of everything else.

        Without `text`, which says nothing new: stores that were made before manifests had it keep their hash.
        """
        return _hash_text(manifest_text({key: value for key, value in self.manifest.items() if key != "text"}))

    @functools.cached_property
    def text_key(self) -> str:
        """The key of the text as tokens, 32 hexadecimal digits: whatever the format, the shards and their order.

        It is of the sum of the documents' hashes, the vocabulary and the held-out part. Reads all shards if the
        manifest has no sum.
        """
        total = self.manifest.get("text") or sum_of_hashes(self.shards)
        decided_by = [total, self.manifest["vocabulary"], self.manifest["settings"].get("held_out")]
        return _hash_text(json.dumps(decided_by, sort_keys=True))[:32]

    @functools.cached_property
    def duplicates(self) -> np.ndarray:
        """Documents, counted over all shards, that repeat an earlier one: int64, ascending, mapped and checked."""
        return _read_duplicates(self.path, self.manifest)

    @functools.cached_property
    def first_documents(self) -> np.ndarray:
        """The number of each shard's first document, counted over all shards, and of all: int64 [shards + 1]."""
        return np.cumsum([0, *(shard_entry["documents"] for shard_entry in self.manifest["shards"])])

    @functools.cached_property
    def first_tokens(self) -> np.ndarray:
        """The number of each shard's first token, counted over all shards, and of all: int64 [shards + 1]."""
        return np.cumsum([0, *(shard_entry["tokens"] for shard_entry in self.manifest["shards"])])

    def repeated(self, shard: int) -> np.ndarray:
        """The duplicates of a shard, counted from its first document: int64, ascending."""
        first, last = self.first_documents[shard : shard + 2]
        low, high = np.searchsorted(self.duplicates, [first, last])
        return np.asarray(self.duplicates[low:high]) - first

    def sources(self) -> list[SourceEntry]:
        """What the manifest or sources.jsonl says about each file of the input; raises DamagedData."""
        return read_sources(self.path, self.manifest)


def sum_of_hashes(shards: Iterable[Shard]) -> str:
    """The sum, modulo 2^128, of the hashes of all documents (128 bits, the low half first): 32 hexadecimal digits."""
    total = 0
    for shard in shards:
        quarters = np.ascontiguousarray(shard.document_hashes, "<u8").view("<u4").sum(0, dtype=np.uint64)
        total += sum(int(quarter) << 32 * place for place, quarter in enumerate(quarters))
    return f"{total % (1 << 128):032x}"


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


def open_store(path: str | Path, like: Store | None = None) -> Store:
    """Open a token store and check its structure (not the shards' hashes: see verify); raises ReportedError.

    `like`: a store whose tokenizer it shares if it was made with the same one.
    """
    path = Path(path)
    return _open_store(path, read_manifest(path), like)


def _open_store(path: Path, manifest: dict[str, Any], like: Store | None = None) -> Store:
    if like and like.manifest["vocabulary"] == manifest["vocabulary"]:
        vocabulary, settings = like.vocabulary, like.tokenizer_settings
    else:
        vocabulary, settings = _read_tokenizer(path, manifest["vocabulary"])
    for shard_entry in manifest["shards"]:
        _require_size(path, shard_entry)
    return Store(path, manifest, Shards(path, manifest), vocabulary, settings)


def _require_size(path: Path, shard_entry: dict[str, Any]) -> None:
    """Raise DamagedData if a shard is missing or cut short."""
    file, expected = shard_file(path, shard_entry["name"]), file_bytes(shard_entry)
    try:
        if (size := file.stat().st_size) < expected:
            raise ValueError(f"it has {size:,} bytes, expected {expected:,}")
    except (OSError, ValueError) as error:
        raise damaged(error, file, "run the same prepare command again: it makes the damaged shards anew") from error


def _read_tokenizer(path: Path, recorded: dict[str, Any]) -> tuple[list[str], TokenizerSettings]:
    """The vocabulary of a store, and how its text was cut; `recorded`: what the manifest says about them."""
    of_json = recorded.get("tokenizer", {}).get("sha256")
    file = path / (TOKENIZER_FILE if of_json else VOCABULARY_FILE)
    try:
        text = read_text(file, path, VOCABULARY_BYTES)  # as prepare reads it
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
    """Open a store and compare all files with their hashes, showing progress; raises DamagedData that names shards."""
    path = Path(path)
    manifest = read_manifest(path)
    size = manifest["vocabulary"]["size"]
    total = sum(map(file_bytes, manifest["shards"]))

    def look(shard_entry: dict[str, Any]) -> bool:
        is_damaged = _is_damaged(path, shard_entry, size)
        progress.add(file_bytes(shard_entry))
        return is_damaged

    # Hashing releases the GIL.
    with ReadingProgress("verify", total) as progress, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = list(threads.map(look, manifest["shards"]))
    names = [entry["name"] for entry, is_damaged in zip(manifest["shards"], found, strict=True) if is_damaged]
    if names:
        raise DamagedShards(path, names)
    store = _open_store(path, manifest)
    store.sources()
    store.duplicates  # noqa: B018  # compares its hash
    if (text := manifest.get("text")) and text != sum_of_hashes(store.shards):
        raise DamagedData(f"{path / 'manifest.json'} is damaged: its `text` is not the sum of the hashes. {_AGAIN}")
    return store


def _is_damaged(path: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> bool:
    try:
        map_shard(path, shard_entry, vocabulary_size)  # before the hash: a damaged file may be sparse, of terabytes
        return hash_file(shard_file(path, shard_entry["name"])) != shard_entry["sha256"]
    except DamagedData:
        return True
    except OSError as error:
        if reported := unreadable(error, error.filename or path / shard_entry["name"]):
            raise reported from error
        return True


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
        raise damaged(error, file, _AGAIN) from error
    return duplicates


def write_sources(store: Path, sources: list[SourceEntry]) -> dict[str, Any]:
    """Write sources.jsonl; returns what the manifest says about it."""
    text = "".join(json.dumps(source, sort_keys=True, ensure_ascii=False) + "\n" for source in sources)
    write_atomically(store / SOURCES_FILE, text)
    return {"files": len(sources), "sha256": _hash_text(text)}


def read_sources(path: Path, manifest: dict[str, Any]) -> list[SourceEntry]:
    """A store's sources; raises ReportedError."""
    recorded = manifest["sources"]
    file = path / SOURCES_FILE
    try:
        digest, sources = hashlib.sha256(), []
        with open_regular(file, inside=path) as lines:
            for line in lines:
                digest.update(line)
                sources.append(parse_json(line))
        if digest.hexdigest() != recorded["sha256"]:
            raise ValueError("its SHA-256 is another")
        check_type(sources, list[SourceEntry], "it")
    except (OSError, ValueError) as error:
        raise damaged(error, file, _AGAIN) from error
    return sources


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
