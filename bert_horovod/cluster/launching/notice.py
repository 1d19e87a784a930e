"""Ask a command, again and again, whether this host is to be taken away: a cloud's notice, or a file."""

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.errors import UserError

POLL_S = 5.0  # clouds give 30 s and more
_ANSWER_S = 20.0
_CANNOT_RUN = (126, 127)  # the shell's exit codes


def watch(command: str, ask_to_stop: Callable[[], None]) -> None:
    """Ask every POLL_S seconds, in a thread; once the command ends with 0 call `ask_to_stop` and ask no more.

    Raises UserError if the shell cannot run the command.
    """
    code = _exit_code(["sh", "-c", command])
    if code in _CANNOT_RUN:
        raise UserError(
            f"--stop_when {command}: the shell cannot run it (exit code {code}); expected a command that ends with 0 "
            "once this host is to be taken away, and with another code before"
        )

    def poll() -> None:
        while _exit_code(["sh", "-c", command]) != 0:
            time.sleep(POLL_S)
        ask_to_stop()

    threading.Thread(target=poll, name="notice", daemon=True).start()


def leaving(command: str, hosts: Hosts, ssh_port: int | None) -> list[str]:
    """The hosts on which the command now ends with 0; all are asked at once."""
    from bert_horovod.cluster.doctor.ask import is_here, ssh

    def leaves(host: str) -> bool:
        words = ["sh", "-c", command]
        return _exit_code(words if is_here(host) else ssh(host, ssh_port, words, "-n")) == 0

    with ThreadPoolExecutor(max_workers=64) as pool:
        return [host for host, yes in zip(hosts, pool.map(leaves, hosts), strict=True) if yes]


def _exit_code(words: list[str]) -> int | None:
    """None: it gave no answer in time."""
    try:
        silent = subprocess.DEVNULL
        return subprocess.run(words, stdin=silent, stdout=silent, stderr=silent, timeout=_ANSWER_S).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
