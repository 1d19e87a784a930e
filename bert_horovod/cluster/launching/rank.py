"""End a rank when the launcher that started it has ended, and say how a rank ended."""

import os
import select
import signal
import sys
import threading

from bert_horovod.collectives.launched import started_by
from bert_horovod.runtime.stopping import STOP_SIGNALS


def end_with_launcher() -> None:
    """End this process when horovodrun or mpirun, or the ssh that started it here, no longer reads its output.

    horovodrun and mpirun leave a rank on another host running, unless the rank just then communicates with one that
    ended. srun ends all ranks.
    """
    if started_by().launcher not in ("horovodrun", "mpirun"):
        return
    # launcher.py turns the stop signals off for its children. SIGTERM ends the rank until a run handles it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles it; mpirun resets it to the default
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_watch, args=(sys.stdout.fileno(),), daemon=True).start()


def _watch(output: int) -> None:
    poll = select.poll()
    poll.register(output, 0)  # errors and hang-ups only: the other end of the pipe, socket or terminal is closed
    poll.poll()
    os._exit(1)


def how_it_ended(code: int, ssh: bool = False) -> str:
    """Describe an exit code: for signal n a shell gives 128 + n, subprocess gives -n.

    `ssh`: the code is that of an ssh client on this host, which passes on that of the rank unless it is killed itself.
    """
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL and ssh:
        return (
            "SIGKILL of the ssh client on this host, or of the rank: by hand, or by the kernel if a host's memory was "
            "full (see dmesg on both)"
        )
    if number == signal.SIGKILL:
        return "SIGKILL: by hand, or by the kernel if the host's memory was full (see dmesg there)"
    if number == signal.SIGBUS:
        return "SIGBUS: a file that it had mapped was cut short, or its disk failed (see bert-horovod verify)"
    if number in set(signal.Signals):
        return signal_name(number)
    return f"exit code {code}{' (of ssh: killed by a signal, or the connection lost)' if code == 255 else ''}"


def signal_name(number: int) -> str:
    return signal.Signals(number).name
