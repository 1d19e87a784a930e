"""What a rank does because something started it: it ends when that has ended."""

import os
import select
import signal
import sys
import threading

from bert_horovod.collectives.launched import started_by
from bert_horovod.runtime.stopping import STOP_SIGNALS


def end_with_launcher() -> None:
    """End this process when horovodrun or mpirun, or the ssh that it came by, no longer reads its output.

    Neither ends a rank on another host that is not just talking to a rank that ended. srun does.
    """
    if started_by().launcher not in ("horovodrun", "mpirun"):
        return
    # launcher.py turns them off for what it starts. Until a run takes SIGTERM as a request, it ends the rank.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher's affair; mpirun puts it back to the default
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_watch, args=(sys.stdout.fileno(),), daemon=True).start()


def _watch(output: int) -> None:
    poll = select.poll()
    poll.register(output, 0)  # errors and hang-ups only: the other end of the pipe, socket or terminal is closed
    poll.poll()
    os._exit(1)
