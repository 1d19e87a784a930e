"""Writes status.json while the run lives, for `bert-horovod status`."""

import socket
import threading
import time
from typing import Any

from bert_horovod.collectives.starting import RendezvousBoard
from bert_horovod.errors import UserError
from bert_horovod.runs.checkpoint import paths, step_of
from bert_horovod.runs.status_files import BEAT_S, Sign
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.watchdog import Status, explain, spoken
from bert_horovod.training.run import Run


class SignHook(Hook):
    """Rank 0 writes a sign of life every BEAT_S seconds in a thread: its activity, and the ranks that it waits for."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._started = time.time()
        self._doing = ("starting", self._started)
        self._ended = ""
        self._writing = threading.Lock()
        # Before the state is loaded: the step from which the run will go on, unless that checkpoint is damaged.
        self._begins_at = max((step_of(path.name) for path in paths(run.job.output_dir)), default=0)
        self._answers: dict[int, Any] = {}  # each other rank's status at the last beat
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if run.world.rank == 0:
            self._board = RendezvousBoard()
            self._write()
            self._thread = threading.Thread(target=self._beat, name="signs of life", daemon=True)
            self._thread.start()

    def doing(self, what: str, more_s: float = 0) -> None:
        self._doing = (what, time.time())
        if what == "saving" and self._thread is not None:  # so that no checkpoint is of a later step than the sign
            self._write()

    def finish(self) -> None:
        done = self.run.state.progress.step >= self.run.last_step
        self._ended = "finished" if done else "stopped, as it was asked to"

    def close(self) -> None:
        if self._thread is not None:
            self._closed.set()
            self._thread.join()
            self._ended = self._ended or "ended by an error"
            self._write()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._write()

    def _write(self) -> None:
        with self._writing:  # the thread and the loop write the same file
            run, (doing, since) = self.run, self._doing
            state = getattr(run, "state", None)  # none until it is loaded
            step, now = state.progress.step if state else self._begins_at, time.time()
            waits = [] if self._ended or now - since < BEAT_S else self._waits(doing, step)
            last_step, started = run.last_step, self._started
            error, again = str(run.failure or ""), not isinstance(run.failure, UserError)
            sign = Sign(step, last_step, doing, since, started, now, run.world.size, waits, self._ended, error, again)
            sign.write(run.job.output_dir)

    def _waits(self, doing: str, step: int) -> list[str]:
        """Lines that say which rank waits for which; see watchdog.explain."""
        answers_before = self._answers
        self._answers = {rank: self._board.read(rank) for rank in range(1, self.run.world.size)}
        statuses = {rank: spoken(answers_before.get(rank), now) for rank, now in self._answers.items()}
        collectives = self.run.world.in_flight()
        own_status = Status(0, socket.gethostname(), step + 1, doing, bool(collectives))
        heard = any(status is not None for status, _ in statuses.values())
        return (
            explain(0, own_status, statuses, self.run.world.size, heard)
            if answers_before or self.run.world.size == 1
            else []
        )
