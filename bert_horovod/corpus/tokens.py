"""Reads tokens of a store by their numbers: pages of shard files, whose CRC-32 is compared at each reading.

Files are read, not mapped, so a page that cannot be read raises an error instead of killing the process, and a store
larger than memory is not read ahead. A bounded number of files is open at once.
"""

import functools
import os
import resource
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.corpus.earlier_shards import ARRAYS as EARLIER_ARRAYS
from bert_horovod.corpus.shard import PAGE_BYTES, see_which, shard_file, token_dtype
from bert_horovod.errors import damaged
from bert_horovod.storage.reading import load_array, open_regular

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
    """Reads tokens; threads may share it.

    Args:
        store: the store's directory.
        manifest: its manifest.
        vocabulary_size: decides the dtype.
    """

    def __init__(self, store: Path, manifest: dict[str, Any], vocabulary_size: int) -> None:
        self._store, self._entries = store, manifest["shards"]
        self.dtype = token_dtype(vocabulary_size)
        self._size = self.dtype.itemsize
        few = max(8, min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._place = functools.cache(self._find)
        self._open = functools.lru_cache(few)(lambda shard: (_OpenFile(self._place(shard).file), *self._place(shard)))
        self._block = functools.lru_cache(_CHECKSUM_BLOCKS)(self._read_checksums)

    def read(self, shard: int, begin: int, count: int) -> np.ndarray:
        """Tokens begin to begin + count - 1 of a shard; raises DamagedData, and ReportedError if a disk fails."""
        size = self._size
        low = begin * size
        page = low // PAGE_BYTES
        high = (low + count * size + PAGE_BYTES - 1) // PAGE_BYTES
        try:
            file, _, tokens, checksums, _ = self._open(shard)
            data = os.pread(file.descriptor, (high - page) * PAGE_BYTES, tokens + page * PAGE_BYTES)
            if checksums:
                if len(data) < (high - page) * PAGE_BYTES:
                    raise ValueError("it ends too early")
                at = 0
                for number in range(page, high):
                    block = self._block(shard, number // _PER_BLOCK)
                    if zlib.crc32(data[at : at + PAGE_BYTES]) != block[number % _PER_BLOCK]:
                        raise ValueError(f"page {number:,} of its tokens has another CRC")
                    at += PAGE_BYTES
            return np.frombuffer(data, self.dtype, count, low - page * PAGE_BYTES)
        except (OSError, ValueError, IndexError) as error:
            raise self._damage(error, shard) from error

    def _damage(self, error: Exception, shard: int) -> Exception:
        name = self._entries[shard]["name"]
        return damaged(error, self._store / name, see_which(self._store))

    def _read_checksums(self, shard: int, block: int) -> memoryview:
        file, _, _, checksums, pages = self._open(shard)
        first = block * _PER_BLOCK
        content = os.pread(file.descriptor, 4 * min(_PER_BLOCK, pages - first), checksums + 4 * first)
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
