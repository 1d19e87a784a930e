"""Kill processes that a failed run left on its hosts; the half that runs on each needs the standard library alone.

python -m bert_horovod.cluster.launching.leftovers ID ...

A rank whose launcher is gone ends by itself (rank.py), but a rank that SIGSTOP or a debugger has stopped cannot.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert_horovod.collectives.launched import ATTEMPT

LIMIT_S = 15.0  # for a host's whole answer
_ROUNDS = 100  # of 0.05 s


def kill_here(attempts: Iterable[str]) -> None:
    """Kill every process on this host whose environment names one of these attempts."""
    marks = {f"{ATTEMPT}={attempt}".encode() for attempt in attempts}
    for _ in range(_ROUNDS):  # again, because a process may start others before it is killed
        processes = [
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if marks & _environment(path)
        ]
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _environment(path: Path) -> set[bytes]:
    try:
        return set(path.read_bytes().split(b"\0"))
    except OSError:  # another user's, or it has ended
        return set()


def sweep(hosts: Iterable[str], ssh_port: int | None, attempts: list[str]) -> set[str]:
    """Kill all processes of these attempts, on all hosts at once; returns the hosts that could not be reached."""
    from bert_horovod.cluster.doctor.ask import is_here, ssh

    words = [sys.executable, "-m", "bert_horovod.cluster.launching.leftovers", *attempts]

    def reached(host: str) -> bool:
        if is_here(host):
            kill_here(attempts)
            return True
        # Any host key will do, as for horovodrun.
        command = ssh(host, ssh_port, words, "-n", "-o", "StrictHostKeyChecking=no")
        try:
            return subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    hosts = list(hosts)
    with ThreadPoolExecutor(max_workers=64) as pool:
        return {host for host, done in zip(hosts, pool.map(reached, hosts), strict=True) if not done}


if __name__ == "__main__":
    kill_here(sys.argv[1:])
