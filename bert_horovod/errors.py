"""Exceptions whose text is all that a person needs: the command line prints it without a traceback.

The text says what was found, what was expected, and what mends it. docs/failures.md lists the failures with their exit
codes, and which of them `launch --restarts` starts again.
"""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_NETWORK = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO)
_OUTSIDE = (*NO_ROOM, *_NETWORK, errno.EIO, errno.ENOMEM)


class ReportedError(Exception):
    """One message, no traceback; raise one of the classes below."""

    exit_code = 1  # 1 and all codes but 0 and 2: `launch --restarts` starts the run again


class UserError(ReportedError):
    """A mistake that the user mends, in flags, recipe, hostfile or input: the same command ends the same way again."""

    exit_code = 2


class RunError(ReportedError):
    """The run failed by something outside of it, a disk, a network, memory: the same command may end better."""


class DamagedData(ReportedError):
    """The content of a file is not what was once written: the same command may end better if reading was at fault."""


def printable(text: str) -> str:
    """Text with what a terminal would take for a command shown as an escape: it may come from a file or a name."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def unreadable(error: OSError | ValueError, path: object) -> UserError | RunError | None:
    """What to raise for a file that cannot be read though its content may be whole; None: its content is at fault."""
    number = getattr(error, "errno", None)
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


def file_error(error: OSError, message: str) -> UserError | RunError:
    """What to raise for a file that cannot be read or written: a full or failing disk is no mistake of the user's."""
    return (RunError if error.errno in _OUTSIDE else UserError)(message)
