"""Write files so that each is on the disk complete, or not at all."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bert_horovod.errors import UserError, file_error


def sync(path: Path) -> None:
    """Write a file's or a directory's cached changes to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name, sync it, and rename it to `path`; raises the error of file_error."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:  # an existing one may be a link or a FIFO
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error


def lock(path: Path, refusal: str, patience_s: float = 0) -> int:
    """Lock a file, created if it is missing, until the returned descriptor is closed or this process ends.

    Raises UserError(refusal) if another process still holds the lock after `patience_s` seconds; OSError, also if the
    path is a symbolic link.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    end = time.monotonic() + patience_s
    while not _take(descriptor, fcntl.LOCK_EX):
        if time.monotonic() >= end:
            os.close(descriptor)
            raise UserError(refusal)
        time.sleep(0.2)
    return descriptor


def share_lock(path: Path, descriptor: int | None) -> int | None:
    """Share a lock with other processes: `lock` gets it again only after the last of them has ended.

    Args:
      path: the lock file.
      descriptor: in the process that holds the lock alone, the descriptor that `lock` returned, and this process must
        call first; in the other processes None.

    Returns: the descriptor to keep open; None if the file cannot be opened or locked (it is on another host).
    """
    try:
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        return descriptor if _take(descriptor, fcntl.LOCK_SH) else None
    except OSError:
        return None


def _take(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a new directory with a temporary name; rename it to `path` at the end, or remove it after an error.

    Raises UserError if `path` exists and is not an empty directory, and the error of file_error.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} exists; expected a new or empty directory")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # left by a command that was killed
        temporary.mkdir()
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            sync(written)
        os.rename(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
