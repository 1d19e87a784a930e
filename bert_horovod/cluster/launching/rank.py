"""End a rank when the launcher that started it has ended."""

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
