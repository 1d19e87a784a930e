"""Write files so that each is on the disk complete, or not at all."""

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_horovod.errors import UserError, file_error

_DESCRIPTOR = re.compile(r"(?:/dev/|/dev/fd/|/proc/self/fd/)(stdout|stderr|\d{1,9})")
_STREAMS = {"stdout": 1, "stderr": 2}
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def sync(path: Path) -> None:
    """Write a file's or a directory's cached changes to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Content = str | Iterable[str] | Iterable[bytes]  # text, as UTF-8; or parts that are written as they come


def write_atomically(path: Path, text: Content, mode: int | None = None) -> None:
    """Write a file under a temporary name, sync it, and rename it to `path`; raises the error of file_error.

    `mode`: the file's permissions; None: as the process's umask says.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # an existing one may be a link or a FIFO
            file.writelines(_parts(text))
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error


def write_output(path: Path, text: Content) -> None:
    """Write to a file that the user named: a new or regular file as write_atomically does it.

    A link is followed to its target, and a file keeps its permissions. Character devices, FIFOs and open descriptors
    (/dev/stdout, /dev/fd/63 of a shell's `>(command)`) stay, and the content is written into them. Raises UserError for
    a directory, a disk or a socket, and the error of file_error.
    """
    try:
        if (descriptor := _descriptor(path)) is not None:
            _write_into(descriptor, text)
            return
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:  # a new file, or a link to one
            mode = None
        if mode is not None and (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
            _write_into(path, text)
            return
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a disk" if stat.S_ISBLK(mode) else "a socket"
        raise UserError(f"{path} is {kind}; expected the name of a file")
    write_atomically(Path(os.path.realpath(path)), text, None if mode is None else stat.S_IMODE(mode))


def is_stdout(path: Path) -> bool:
    """Whether what write_output writes to this path goes to standard output, where nothing else may stand then."""
    return _descriptor(path) == 1


def _descriptor(path: Path) -> int | None:
    """The open descriptor that a path names, as /dev/stdout does; None: it names none."""
    named = _DESCRIPTOR.fullmatch(str(path))
    return None if named is None else _STREAMS.get(named[1]) or int(named[1])


def _write_into(place: Path | int, text: Content) -> None:
    sys.stdout.flush()  # it may be the same place
    with open(place, "wb", closefd=not isinstance(place, int)) as file:
        file.writelines(_parts(text))


def _parts(text: Content) -> Iterator[bytes]:
    for part in [text] if isinstance(text, str) else text:
        yield part.encode() if isinstance(part, str) else part


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

    The process that holds the lock alone calls first, with the descriptor that `lock` returned, the others with None.
    Returns the descriptor to keep open; None if the file cannot be opened or locked (it is on another host).
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
    except OSError as error:
        if error.errno in _NO_LOCKS:
            error.strerror = f"{error.strerror}: its file system has no file locks (Lustre: mount it with -o flock)"
        raise
    return True


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a new directory with a temporary name; rename it to `path` at the end, or remove it after an error.

    A link to an empty directory is followed. Raises UserError if `path` exists and is no empty directory, is a mount
    point, or is being written by another process; and the error of file_error.
    """
    target = require_new_directory(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        locked = target.with_name(f".{target.name}.lock")
        descriptor = lock(locked, f"another command is writing {path}; wait for it, or give another name")
        try:
            require_new_directory(path)  # what held the lock before may have made it
            for left_over in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
                shutil.rmtree(left_over, ignore_errors=True)  # of a command that was killed
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
            try:
                temporary.chmod(0o777 & ~_umask())
                yield temporary
                for written in [*temporary.rglob("*"), temporary]:
                    sync(written)
                os.rename(temporary, target)
                sync(target.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        finally:
            locked.unlink(missing_ok=True)
            os.close(descriptor)
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror or error}") from error


def require_new_directory(path: Path) -> Path:
    """The place that `path` leads to; raises UserError unless a new directory can be made there."""
    target = Path(os.path.realpath(path))
    if os.path.ismount(target):
        raise UserError(f"{path} is a mount point; expected a new directory, such as one inside it")
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{path} exists; expected a new or empty directory")
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
