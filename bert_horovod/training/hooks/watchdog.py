"""Ends a rank that waits too long for one thing, with the stacks of its threads and the names of whom it waits for."""

import faulthandler
import os
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from bert_horovod.collectives.rendezvous import RendezvousBoard
from bert_horovod.collectives.world import World
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import Run

EXIT_CODE = 3
BEAT_S = 2.0  # between signs of life
_STDERR = 2  # the descriptor, whatever sys.stderr is
_PATIENCE_S = 15.0  # of a rank that leaves the report to another


class Status(NamedTuple):
    """A rank's sign of life."""

    beat: int  # counts up while the rank lives
    host: str
    step: int
    doing: str
    waits: bool  # for other ranks


class _Work(NamedTuple):
    doing: str
    step: int
    since: float  # of the monotonic clock
    more_s: float  # beyond the limit


class WatchdogHook(Hook):
    """Ends this rank where one thing takes longer than execution.stall_s."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._watchdog = Watchdog(run.world, run.recipe.execution.stall_s)

    def doing(self, what: str, more_s: float = 0) -> None:
        state = getattr(self.run, "state", None)  # there is none while it is loaded
        self._watchdog.begin(what, state.progress.step + 1 if state else 0, more_s)

    def finish(self) -> None:
        self._watchdog.close()  # the other ranks wait for rank 0's last checkpoint, which may wait long for room

    def close(self) -> None:
        self._watchdog.close()


class Watchdog:
    """A thread that looks whether this rank gets on with its work.

    Args:
      world: the ranks.
      limit_s: longest time for one piece of work.
    """

    def __init__(self, world: World, limit_s: float) -> None:
        self._world, self._limit_s = world, limit_s
        self._board = RendezvousBoard()
        self._beat = 0
        self._closed = threading.Event()
        self.begin("starting", 0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def begin(self, doing: str, step: int, more_s: float = 0) -> None:
        """Say what this rank does from now on, for the step with this number; it may take so much longer."""
        self._work = _Work(doing, step, time.monotonic(), more_s)

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT_S):
            # Runs without Python's lock: it ends a process of which a disk or a library holds that for too long.
            faulthandler.dump_traceback_later(self._limit_s + _PATIENCE_S, exit=True, file=_STDERR)
            heard = self._tell()
            if self._late():
                others = self._others() if heard else {}
                if self._late():  # still
                    self._end(others, heard)

    def _late(self) -> bool:
        work = self._work
        return time.monotonic() - work.since > self._limit_s + work.more_s

    def _tell(self) -> bool:
        self._beat += 1
        return self._board.write(self._world.rank, self._status())

    def _status(self) -> Status:
        doing, step, *_ = self._work
        collectives = self._world.in_flight()
        if collectives:
            doing = f"{doing}, in the collectives {', '.join(collectives)}"
        return Status(self._beat, socket.gethostname(), step, doing, bool(collectives))

    def _end(self, others: dict[int, tuple[Status | None, bool]], heard: bool) -> None:
        work, mine = self._work, self._status()
        alive = [rank for rank, (_, answers) in others.items() if answers]
        faulthandler.dump_traceback(_STDERR)
        if alive and min(alive) < self._world.rank:
            self._closed.wait(_PATIENCE_S)  # that rank reports, and its end ends this one
            os._exit(EXIT_CODE)
        more = f" and {work.more_s:.0f} more" if work.more_s else ""
        lines = [
            f"bert-horovod: error: stalled: rank {self._world.rank} on {mine.host} has been at one thing for "
            f"{time.monotonic() - work.since:.0f} s: step {mine.step}, {mine.doing}; expected at most "
            f"execution.stall_s = {self._limit_s:g}{more} (raise it if a step takes longer)"
        ]
        lines += explain(self._world.rank, mine, others, self._world.size, heard)
        print("\n".join(lines), file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)

    def _others(self) -> dict[int, tuple[Status | None, bool]]:
        """The other ranks' last words, and whether they still speak."""
        ranks = [rank for rank in range(self._world.size) if rank != self._world.rank]
        before = {rank: self._board.read(rank) for rank in ranks}
        end = time.monotonic() + 3 * BEAT_S
        while time.monotonic() < end and not self._closed.wait(BEAT_S / 2):
            self._tell()
        return {rank: _spoken(before[rank], self._board.read(rank)) for rank in ranks}


def explain(
    rank: int, mine: Status, others: dict[int, tuple[Status | None, bool]], size: int, heard: bool
) -> list[str]:
    """Lines that say who waits for whom.

    Args:
      rank: this one.
      mine: its status.
      others: by rank, the last status and whether that rank still gives signs of life.
      size: of the world.
      heard: whether the server that ranks tell each other by could be reached.
    """
    if size == 1:
        return []
    if not heard:
        return [
            "it knows nothing of the other ranks: horovodrun's rendezvous server did not answer, because the network "
            "or horovodrun's host is gone, or because ranks are joined by MPI, which has none"
        ]
    lines = []
    everyone = {rank: (mine, True), **others}
    for other in sorted(others):
        status, answers = others[other]
        if status is None:
            lines.append(f"rank {other}: never gave a sign of life")
        else:
            silent = "" if answers else "gives no sign of life: stopped, dead or cut off. It was at "
            lines.append(f"rank {other} on {status.host}: {silent}step {status.step}, {status.doing}")
    blamed = [other for other, (_, answers) in sorted(everyone.items()) if not answers]
    blamed = blamed or [other for other, (status, _) in sorted(everyone.items()) if not status.waits]
    waiting = [other for other in sorted(everyone) if other not in blamed]
    if blamed and waiting:
        lines.append(f"so {_ranks(waiting)} wait{'s' * (len(waiting) == 1)} for {_ranks(blamed)}")
    elif not blamed:
        lines.append("so all ranks wait for each other: the network between them carries nothing, or ranks differ")
    return lines


def _spoken(before: Any, after: Any) -> tuple[Status | None, bool]:
    if after is None:
        return None, False
    return Status(*after), before is not None and after[0] != before[0]


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
