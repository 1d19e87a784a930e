"""Exceptions whose text is all that a person needs: the command line prints it without a traceback.

The text says what was found, what was expected, and what mends it. docs/failures.md lists the failures with their exit
codes, and which of them `launch --restarts` starts again.
"""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_OUTSIDE = (*NO_ROOM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO)


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


def file_error(error: OSError, message: str) -> UserError | RunError:
    """What to raise for a file that cannot be read or written: a full or failing disk is no mistake of the user's."""
    return (RunError if error.errno in _OUTSIDE else UserError)(message)
