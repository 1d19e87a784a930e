"""Large files, written past the system's page cache: filling it takes more of a processor than all the rest."""

import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

BLOCK_BYTES = 1 << 21


def write_direct(path: Path, parts: Iterable[np.ndarray]) -> str:
    """Write arrays, uint8 [bytes], one after another, and sync them; returns their SHA-256, in hexadecimal.

    Python's lock is free meanwhile. A file system without direct writes gets ordinary ones. Raises OSError.
    """
    digest = hashlib.sha256()
    block = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)  # pages of its own, as direct writes need them
    filled = 0
    descriptor = _open(path)
    try:
        for part in parts:
            while len(part):
                taken = min(BLOCK_BYTES - filled, len(part))
                block[filled : filled + taken] = part[:taken]
                part, filled = part[taken:], filled + taken
                if filled == BLOCK_BYTES:
                    digest.update(block)
                    _write(descriptor, block)
                    filled = 0
        digest.update(block[:filled])
        _write(descriptor, block[:filled])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def _write(descriptor: int, content: np.ndarray) -> None:
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            # A file's end, and what follows a short write, is no whole number of the disk's blocks.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
