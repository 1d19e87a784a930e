"""Signals that ask a run to stop: it saves at the next step and ends. A second one ends the process at once.

A step may take minutes, in which Python's own handlers do not run: a thread takes the signals instead.
"""

import os
import signal
import threading
import time

from bert_horovod.runtime.lasting_log import warn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)  # by who started this: nohup, a launcher, a shell without jobs
# In which a SIGHUP is the same request as the signal before it: a terminal that is closed and its shell send one each,
# and systemd sends one after SIGTERM.
_SAME_REQUEST_S = 1.0


def heeded() -> list[int]:
    """The signals that are taken: a SIGHUP that nohup has ignored stays so."""
    return [number for number in STOP_SIGNALS if not (number == signal.SIGHUP and _is_ignored(number))]


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def is_same_request(number: int, since_s: float) -> bool:
    """Whether a further signal, so long after the first, asks for nothing more."""
    return number == signal.SIGHUP and since_s < _SAME_REQUEST_S


class StopSignals:
    """The signals of this process, from its first run on; one run may be within another."""

    def __init__(self) -> None:
        self._runs = 0
        self._speaks = False
        self._asked: int | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come for the runs that there are, or before the next one."""
        return self._asked is not None

    def begin(self, speaks: bool) -> None:
        """A run begins, in the main thread; `speaks`: whether this process says what it does about a signal."""
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
        """A run ends. The signals stay taken: their defaults would end a process that is about to end in order."""
        self._runs -= 1
        if not self._runs:
            self._asked = None

    def _listen(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in STOP_SIGNALS and signal.getsignal(number) is _left_to_the_thread:
                    self._take(number)

    def _take(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._asked is None:
            self._asked, self._asked_at = number, time.monotonic()
            self._say(f"{name}: the run saves after this step and ends; once more ends it at once, without saving")
        elif not is_same_request(number, time.monotonic() - self._asked_at):
            self._say(f"{name} once more: ended without saving; the same command resumes from the last checkpoint")
            os._exit(128 + number)

    def _say(self, text: str) -> None:
        if self._speaks and self._runs:
            warn(text)


def _left_to_the_thread(number: int, frame: object) -> None:
    """With a handler of Python's, a signal comes to the thread."""


STOP = StopSignals()  # signals are the process's
