"""Files that are on the disk whole, or not at all."""

import contextlib
import fcntl
import os
from pathlib import Path

from bert_horovod.errors import UserError


def sync(path: Path) -> None:
    """Bring a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name, sync it, and move it into place; raises UserError when that fails."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:  # made anew: it may be a link or a FIFO
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def lock(path: Path, refusal: str) -> int:
    """Lock a file, which is made if need be, until the returned descriptor is closed or this process ends.

    Raises UserError(refusal) if another process holds it, and OSError, also for a link.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(refusal) from error
    return descriptor
