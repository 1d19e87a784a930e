"""Direct I/O for large files: filling the system's page cache would take more processor time than all other steps."""

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
    """Write uint8 [bytes] arrays one after another to a file, and sync it; returns their SHA-256, in hexadecimal.

    Other Python threads run meanwhile (no global interpreter lock is held). Where the file system has no direct I/O,
    the writes are ordinary ones. Raises OSError.
    """
    digest = hashlib.sha256()
    block = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)  # at a page's begin: direct I/O needs it
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
            # Direct I/O takes whole disk blocks only: the file's end, or the rest of a short write, is written without.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
