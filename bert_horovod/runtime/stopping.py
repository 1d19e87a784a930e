"""Signals that ask a run to stop: it saves after the current step and ends. A second one ends the process at once.

A step may take minutes, and Python runs no signal handler during it: a thread handles the signals instead.
"""

import os
import signal
import threading
import time

from bert_horovod.runtime.lasting_log import warn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)  # by the parent process: nohup, a launcher, a shell without jobs
LEAVING = 75  # exit code of a rank under `launch` that has saved because it was asked itself: its host goes away
# For so long after another signal a SIGHUP is the same request: a closed terminal and its shell send one each, and
# systemd sends one after SIGTERM.
_SAME_REQUEST_S = 1.0


def heeded() -> list[int]:
    """The signals to handle: all of STOP_SIGNALS, but not a SIGHUP that is ignored, as under nohup."""
    return [number for number in STOP_SIGNALS if not (number == signal.SIGHUP and _is_ignored(number))]


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def is_same_request(number: int, since_s: float) -> bool:
    """Whether another signal, `since_s` after the first, repeats the same request."""
    return number == signal.SIGHUP and since_s < _SAME_REQUEST_S


class StopSignals:
    """Handles the stop signals of this process, from its first run on; one run may be within another."""

    def __init__(self) -> None:
        self._runs = 0
        self._speaks = False
        self._asked: int | None = None
        self._asked_at = 0.0
        self._noticed = False
        self.came = False  # whether this process was ever asked
        self._thread: threading.Thread | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal or a notice has come during the current runs, or before the next run."""
        return self._asked is not None or self._noticed

    def begin(self, speaks: bool) -> None:
        """Call at a run's begin, in the main thread; `speaks`: whether this process prints what a signal does."""
        self._runs += 1
        self._speaks = speaks
        if self._thread is None:
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, args=(reading,), name="signals", daemon=True)
            self._thread.start()
        for number in STOP_SIGNALS:
            if number not in _MAY_BE_IGNORED or not _is_ignored(number):
                signal.signal(number, _left_to_the_thread)

    def end(self) -> None:
        """Call at a run's end. The handlers stay: a signal's default action would kill a process that is ending."""
        self._runs -= 1
        if not self._runs:
            self._asked, self._noticed = None, False

    def notice(self, why: str) -> None:
        """Ask as a signal does, and say why; the signals that then come with the machine's end do not count twice."""
        self._noticed = self.came = True
        self._say(f"{why}: the run saves after this step and ends")

    def _listen(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in STOP_SIGNALS and signal.getsignal(number) is _left_to_the_thread:
                    self._take(number)

    def _take(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._asked is None:
            self._asked, self._asked_at, self.came = number, time.monotonic(), True
            self._say(f"{name}: the run saves after this step and ends; once more ends it at once, without saving")
        elif not is_same_request(number, time.monotonic() - self._asked_at):
            self._say(f"{name} once more: ended without saving; the same command resumes from the last checkpoint")
            os._exit(128 + number)

    def _say(self, text: str) -> None:
        if self._speaks and self._runs:
            warn(text)


def _left_to_the_thread(number: int, frame: object) -> None:
    """Does nothing; only signals that have a Python handler reach the thread."""


STOP = StopSignals()  # one for the process, because signals are sent to a process
