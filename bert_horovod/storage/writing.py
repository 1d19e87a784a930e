"""Files that are on the disk whole, or not at all."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bert_horovod.errors import UserError, file_error


def sync(path: Path) -> None:
    """Bring a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name, sync it, and move it into place; raises what file_error makes."""
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
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error


def lock(path: Path, refusal: str, patience_s: float = 0) -> int:
    """Lock a file, which is made if need be, until the returned descriptor is closed or this process ends.

    Raises UserError(refusal) if another process holds it, still after so many seconds; OSError, also for a link.
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
    """Hold a lock together with other processes: nobody gets it before the last of them has ended.

    Args:
      path: of the file.
      descriptor: what `lock` returned to the process that has it for itself now, which must come first; else None.

    Returns: the descriptor to keep; None where the file is not to be had (it is another host's).
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
    """A directory to fill under a temporary name, which is moved into place at the end; removed if there is an error.

    Raises UserError if there is something else than an empty directory
    at the path, and what file_error makes.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} exists; expected a new or empty directory")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # of a command that was killed
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
