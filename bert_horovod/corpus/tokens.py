"""Reads tokens of a store by their numbers: pages of shard files, whose CRC-32 is compared at each reading.

Files are read, not mapped, so a page that cannot be read raises an error instead of killing the process, and a store
larger than memory is not read ahead. All readers together have a bounded number of files open: the first opened is
closed first.
"""

import functools
import os
import resource
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.corpus.shard import PAGE_BYTES, see_which, shard_file, token_dtype
from bert_horovod.errors import damaged
from bert_horovod.storage.reading import open_regular

_OPEN_FILES = 256
_CHECKSUM_BLOCKS = 4096  # of 4 KiB, kept in memory
_PER_BLOCK = PAGE_BYTES // 4  # checksums


class _OpenFile:
    """A shard's descriptor, closed when nobody uses it any more, and where its tokens begin."""

    def __init__(self, path: Path, tokens: int) -> None:
        self.descriptor, self.tokens = os.open(path, os.O_RDONLY), tokens

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class _Place(NamedTuple):
    """Where a shard's tokens lie."""

    file: Path
    tokens: int  # where they begin in the file
    checksums: int  # where their checksums begin
    pages: int


_OPENED: deque[tuple[weakref.ref["TokenReader"], int]] = deque()  # readers and shards, the first opened first


class TokenReader:
    """Reads tokens; threads may share it."""

    def __init__(self, store: Path, manifest: dict[str, Any], vocabulary_size: int) -> None:
        self.store, self._entries = store, manifest["shards"]
        self.dtype = token_dtype(vocabulary_size)
        self._size = self.dtype.itemsize
        self._place = functools.cache(self._find)
        self._block = functools.lru_cache(_CHECKSUM_BLOCKS)(self._read_checksums)
        self._opened: dict[int, _OpenFile] = {}

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
        columns = (shard, first, (end + PAGE_BYTES - 1) // PAGE_BYTES - first, low % PAGE_BYTES)
        number = 0
        pread, crc32, opened, checksums = os.pread, zlib.crc32, self._opened.get, self._block  # looked up once
        try:
            for number, page, together, offset in zip(*(column.tolist() for column in columns), strict=True):
                file = opened(number) or self._open(number)
                data = pread(file.descriptor, together * PAGE_BYTES, file.tokens + page * PAGE_BYTES)
                if together > 1 or crc32(data) != checksums(number, page // _PER_BLOCK)[page % _PER_BLOCK]:
                    self._compare(data, number, page, together)
                yield data, offset
        except (OSError, ValueError, IndexError) as error:
            raise damaged(error, self.store / self._entries[number]["name"], see_which(self.store)) from error

    def _compare(self, data: bytes, shard: int, page: int, pages: int) -> None:
        """Raise ValueError if not all of these pages are whole."""
        if len(data) < pages * PAGE_BYTES:
            raise ValueError("it ends too early")
        for i in range(pages):
            block = self._block(shard, (page + i) // _PER_BLOCK)
            if zlib.crc32(data[i * PAGE_BYTES : (i + 1) * PAGE_BYTES]) != block[(page + i) % _PER_BLOCK]:
                raise ValueError(f"page {page + i:,} of its tokens has another CRC")

    def _open(self, shard: int) -> _OpenFile:
        place = self._place(shard)
        file = self._opened[shard] = _OpenFile(place.file, place.tokens)
        _OPENED.append((weakref.ref(self), shard))
        most = max(8, min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        while len(_OPENED) > most:
            reader, first = _OPENED.popleft()
            if owner := reader():
                owner._opened.pop(first, None)
        return file

    def _read_checksums(self, shard: int, block: int) -> memoryview:
        place, first = self._place(shard), block * _PER_BLOCK
        count = min(_PER_BLOCK, place.pages - first)
        file = self._opened.get(shard) or self._open(shard)
        content = os.pread(file.descriptor, 4 * count, place.checksums + 4 * first)
        return memoryview(content[: len(content) & ~3]).cast("I")

    def _find(self, shard: int) -> _Place:
        """Check once that a shard's file is a regular one inside of the store, as long as it should be."""
        entry = self._entries[shard]
        file = shard_file(self.store, entry["name"])
        open_regular(file, inside=self.store).close()
        (tokens, size, _), (checksums, _, _) = (entry["arrays"][name] for name in ("tokens", "checksums"))
        return _Place(file, tokens, checksums, size // PAGE_BYTES)
