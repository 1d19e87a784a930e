"""Ask a command, again and again, whether this host is to be taken away: a cloud's notice, or a file."""

import subprocess
import threading
import time
from collections.abc import Callable

from bert_horovod.errors import UserError

POLL_S = 5.0  # clouds give 30 s and more
_ANSWER_S = 20.0
_CANNOT_RUN = (126, 127)  # the shell's exit codes


def watch(command: str, ask_to_stop: Callable[[], None]) -> None:
    """Ask every POLL_S seconds, in a thread; once the command ends with 0 call `ask_to_stop` and ask no more.

    Raises UserError if the shell cannot run the command.
    """
    code = exit_code(["sh", "-c", command])
    if code in _CANNOT_RUN:
        raise UserError(
            f"--stop_when {command}: the shell cannot run it (exit code {code}); expected a command that ends with 0 "
            "once this host is to be taken away, and with another code before"
        )

    def poll() -> None:
        while exit_code(["sh", "-c", command]) != 0:
            time.sleep(POLL_S)
        ask_to_stop()

    threading.Thread(target=poll, name="notice", daemon=True).start()


def exit_code(words: list[str]) -> int | None:
    """The exit code of a program; None: it gave no answer in time."""
    try:
        silent = subprocess.DEVNULL
        return subprocess.run(words, stdin=silent, stdout=silent, stderr=silent, timeout=_ANSWER_S).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
