"""Exceptions whose message is all that a user needs: the command line prints it without a traceback.

The message says what was found, what was expected, and how to fix it. docs/failures.md lists the failures with their
exit codes, and after which of them `launch --restarts` starts the run again.
"""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_NETWORK = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO)
_OUTSIDE = (*NO_ROOM, *_NETWORK, errno.EIO, errno.ENOMEM)


class ReportedError(Exception):
    """Printed as one message without a traceback; raise one of its subclasses below."""

    exit_code = 1  # `launch --restarts` starts the run again after 1, and after every code but 0 and 2


class UserError(ReportedError):
    """A mistake that the user can fix, in flags, recipe, hostfile or input: the same command would fail again."""

    exit_code = 2


class RunError(ReportedError):
    """Something outside the run failed (a disk, a network, memory): the same command may succeed next time."""


class DamagedData(ReportedError):
    """A file's content is not what was written: the same command may succeed next time if only the read failed."""


class WrongDevice(ReportedError):
    """A device computed wrongly: the same command goes on from an earlier checkpoint, maybe on that device again."""

    exit_code = 4


def printable(text: str) -> str:
    """Text with unprintable characters as escapes: it may be from a file or a name, and a terminal may obey them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_line(text: str) -> str:
    """The same for text within a line: line ends are escapes too."""
    return printable(text).replace("\n", "\\n")


def unreadable(error: Exception, path: object) -> UserError | RunError | None:
    """The error for a file that cannot be read though its content may be whole; None if its content is at fault."""
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if reported := _without_temporary(error):
        return reported
    if number in _DENIED:
        return UserError(f"cannot read {path}: {error.strerror}; this user needs the right to read it (see ls -l)")
    if number in _TOO_MANY:
        return UserError(f"cannot read {path}: {error.strerror}; allow more of them, as with: ulimit -n 65536")
    if number in _OUTSIDE:
        return RunError(
            f"cannot read {path}: {error.strerror}. Its disk or network fails, and the file may be whole: see to that, "
            "then run the same command again"
        )
    return None


def _without_temporary(error: OSError) -> UserError | None:
    """The error if Python found no directory for temporary files, whatever file a command was about to write."""
    if not str(error.strerror).startswith("No usable temporary directory"):
        return None
    return UserError(
        f"no temporary file can be made: {str(error.strerror)[0].lower()}{str(error.strerror)[1:]}; make one of them "
        "writable, with room, or name another directory: export TMPDIR=DIR"
    )


def damaged(error: Exception, path: object, mend: str) -> ReportedError:
    """The error for a file that cannot be read or whose content is at fault; `mend` says what makes it anew."""
    reason = getattr(error, "strerror", None) or error
    return unreadable(error, path) or DamagedData(f"{path} is missing or damaged ({reason}); {mend}")


def file_error(error: OSError, message: str) -> UserError | RunError:
    """The error for a file that cannot be read or written: RunError if the disk is full or fails, else UserError."""
    return _without_temporary(error) or (RunError if error.errno in _OUTSIDE else UserError)(message)
