"""Reads tokens of a store by their numbers: pages of shard files, whose CRC-32 is compared at each reading.

Files are read, not mapped, so a page that cannot be read raises an error instead of killing the process, and a store
larger than memory is not read ahead. A bounded number of files is open at once.

Shards of stores of format 2, which earlier versions wrote, are directories of .npy files. They are read, not written.
Their arrays are those of shard.py, but for `checksums` and `parts`: each shard is one part.
"""

import functools
import hashlib
import os
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.corpus.shard import PAGE_BYTES, Shard, checked, see_which, shard_file, token_dtype
from bert_horovod.errors import damaged
from bert_horovod.storage.reading import load_array, open_regular

EARLIER_ARRAYS = ("tokens", "sentences", "sections", "documents", "held_out", "document_hashes", "titles")


def map_directory(store: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> Shard:
    """Map the arrays of a shard, and check all but the tokens; raises ReportedError."""
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
        file = store / shard_entry["name"] / f"{name}.npy"
        try:
            arrays[name] = load_array(file, dtype, shape, inside=store)
        except (OSError, ValueError) as error:
            raise damaged(error, file, see_which(store)) from error
    return checked(Shard(**arrays), store / shard_entry["name"])


def hash_directory(directory: Path) -> str:
    """SHA-256, in hexadecimal, over a shard's files in a fixed order; missing files count as empty."""
    digest = hashlib.sha256()
    for name in EARLIER_ARRAYS:
        file = directory / f"{name}.npy"
        size = file.stat().st_size if file.is_file() else 0
        digest.update(f"{name} {size}\n".encode())
        if size:
            with open_regular(file) as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


_OPEN_FILES = 256
_CHECKSUM_BLOCKS = 4096  # of 4 KiB, kept in memory
_PER_BLOCK = PAGE_BYTES // 4  # checksums


class _OpenFile:
    """A descriptor, closed when nobody uses it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class _Place(NamedTuple):
    """Where a shard's tokens lie."""

    file: Path
    tokens: int  # where they begin in the file
    checksums: int  # where their checksums begin; 0: there are none (format 2)
    pages: int


class TokenReader:
    """Reads tokens; threads may share it."""

    def __init__(self, store: Path, manifest: dict[str, Any], vocabulary_size: int) -> None:
        self._store, self._entries = store, manifest["shards"]
        self.dtype = token_dtype(vocabulary_size)
        self._size = self.dtype.itemsize
        few = max(8, min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._place = functools.cache(self._find)
        self._open = functools.lru_cache(few)(self._open_place)
        self._block = functools.lru_cache(_CHECKSUM_BLOCKS)(self._read_checksums)

    def read(self, shard: int, begin: int, count: int) -> np.ndarray:
        """Tokens begin to begin + count - 1 of a shard; raises as `pages`."""
        [(data, offset)] = self.pages(*(np.array([number]) for number in (shard, begin, count)))
        return np.frombuffer(data, self.dtype, count, offset)

    def pages(self, shard: np.ndarray, begin: np.ndarray, count: np.ndarray) -> Iterator[tuple[bytes, int]]:
        """Read runs of tokens, whose shards, first tokens and lengths (at least 1) are int64 [n]: the pages of each.

        Yields the pages and the byte in them where the run begins. Raises DamagedData, and ReportedError if a disk
        fails.
        """
        low = begin * self._size
        first = low // PAGE_BYTES
        end = low + count * self._size
        columns = (
            shard,
            first,
            (end + PAGE_BYTES - 1) // PAGE_BYTES - first,
            low % PAGE_BYTES,
            end - first * PAGE_BYTES,
        )
        number = 0
        pread, crc32, open_place, checksums = os.pread, zlib.crc32, self._open, self._block  # looked up once
        try:
            for number, page, together, offset, needed in zip(*(column.tolist() for column in columns), strict=True):
                descriptor, tokens, is_checked, _ = open_place(number)
                data = pread(descriptor, together * PAGE_BYTES, tokens + page * PAGE_BYTES)
                if is_checked:
                    if together > 1 or crc32(data) != checksums(number, page // _PER_BLOCK)[page % _PER_BLOCK]:
                        self._compare(data, number, page, together)
                elif len(data) < needed:
                    raise ValueError("it ends too early")
                yield data, offset
        except (OSError, ValueError, IndexError) as error:
            raise damaged(error, self._store / self._entries[number]["name"], see_which(self._store)) from error

    def _compare(self, data: bytes, shard: int, page: int, pages: int) -> None:
        """Raise ValueError if not all of these pages are whole."""
        if len(data) < pages * PAGE_BYTES:
            raise ValueError("it ends too early")
        for i in range(pages):
            block = self._block(shard, (page + i) // _PER_BLOCK)
            if zlib.crc32(data[i * PAGE_BYTES : (i + 1) * PAGE_BYTES]) != block[(page + i) % _PER_BLOCK]:
                raise ValueError(f"page {page + i:,} of its tokens has another CRC")

    def _open_place(self, shard: int) -> tuple[int, int, bool, _OpenFile]:
        place = self._place(shard)
        opened = _OpenFile(place.file)
        return opened.descriptor, place.tokens, place.checksums > 0, opened

    def _read_checksums(self, shard: int, block: int) -> memoryview:
        place, first = self._place(shard), block * _PER_BLOCK
        count = min(_PER_BLOCK, place.pages - first)
        content = os.pread(self._open(shard)[0], 4 * count, place.checksums + 4 * first)
        return memoryview(content[: len(content) & ~3]).cast("I")

    def _find(self, shard: int) -> _Place:
        """Check once that a shard's file is a regular one inside of the store, as long as it should be."""
        entry = self._entries[shard]
        if "arrays" in entry:
            file = shard_file(self._store, entry["name"])
            open_regular(file, inside=self._store).close()
            (tokens, size, _), (checksums, _, _) = (entry["arrays"][name] for name in ("tokens", "checksums"))
            return _Place(file, tokens, checksums, size // PAGE_BYTES)
        file = self._store / entry["name"] / f"{EARLIER_ARRAYS[0]}.npy"
        base: Any = load_array(file, self.dtype, (entry["tokens"],), inside=self._store)
        while not isinstance(base, np.memmap):
            base = base.base
        return _Place(file, base.offset, 0, 0)
