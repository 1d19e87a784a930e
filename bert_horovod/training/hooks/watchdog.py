"""Ends a rank if one activity takes too long; prints the stacks of its threads and the ranks that it waits for."""

import faulthandler
import os
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from bert_horovod.collectives.starting import RendezvousBoard
from bert_horovod.collectives.world import World
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import Run

EXIT_CODE = 3
SILENT = "gives no sign of life: stopped, dead or cut off."  # cluster/launching/launcher.py looks for it
BEAT_S = 2.0  # seconds between two signs of life
_STDERR = 2  # file descriptor; sys.stderr may be replaced
_ENDED = "ended"  # the last activity of a rank
_PATIENCE_S = 15.0  # seconds that a rank waits while a lower rank prints the report


class Status(NamedTuple):
    """A rank's sign of life."""

    beat: int  # counts up while the rank lives
    host: str
    step: int
    doing: str
    waits: bool  # whether it waits for other ranks


class _Work(NamedTuple):
    doing: str
    step: int
    since: float  # time.monotonic() at its begin
    more_s: float  # seconds that it may take beyond the limit


class WatchdogHook(Hook):
    """Ends this rank if one activity takes longer than execution.stall_s."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._watchdog = Watchdog(run.world, run.recipe.execution.stall_s)

    def doing(self, what: str, more_s: float = 0) -> None:
        state = getattr(self.run, "state", None)  # none until it is loaded
        self._watchdog.begin(what, state.progress.step + 1 if state else 0, more_s)

    def finish(self) -> None:
        self._watchdog.close()  # other ranks wait for rank 0's last checkpoint, which may wait long for disk space

    def close(self) -> None:
        self._watchdog.close()


class Watchdog:
    """A thread that checks whether this rank makes progress: each activity within `limit_s` seconds."""

    def __init__(self, world: World, limit_s: float) -> None:
        self._world, self._limit_s = world, limit_s
        self._board = RendezvousBoard()
        self._beat = 0
        self._closed = threading.Event()
        self.begin("starting", 0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def begin(self, doing: str, step: int, more_s: float = 0) -> None:
        """Begin activity `doing` of step number `step`; it may take `more_s` seconds beyond the limit."""
        self._work = _Work(doing, step, time.monotonic(), more_s)

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()
        if self._work.doing != _ENDED:
            self.begin(_ENDED, self._work.step)
            self._tell()  # so that nobody takes this rank for a silent one
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT_S):
            # faulthandler needs no GIL: it ends the process even if a library or a slow disk holds the GIL too long.
            faulthandler.dump_traceback_later(self._limit_s + _PATIENCE_S, exit=True, file=_STDERR)
            heard = self._tell()
            if self._late():
                statuses = self._others() if heard else {}
                if self._late():  # still late after the ranks were asked
                    self._end(statuses, heard)

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

    def _end(self, statuses: dict[int, tuple[Status | None, bool]], heard: bool) -> None:
        work, own_status = self._work, self._status()
        alive = [rank for rank, (_, answers) in statuses.items() if answers]
        faulthandler.dump_traceback(_STDERR)
        if alive and min(alive) < self._world.rank:
            self._closed.wait(_PATIENCE_S)  # the lower rank reports, and its end ends this rank
            os._exit(EXIT_CODE)
        more = f" and {work.more_s:.0f} more" if work.more_s else ""
        lines = [
            f"bert-horovod: error: stalled: rank {self._world.rank} on {own_status.host} has been at one thing for "
            f"{time.monotonic() - work.since:.0f} s: step {own_status.step}, {own_status.doing}; expected at most "
            f"execution.stall_s = {self._limit_s:g}{more} (raise it if a step takes longer)"
        ]
        lines += explain(self._world.rank, own_status, statuses, self._world.size, heard)
        print("\n".join(lines), file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)

    def _others(self) -> dict[int, tuple[Status | None, bool]]:
        """Each other rank's last status, and whether the rank still gives signs of life."""
        ranks = [rank for rank in range(self._world.size) if rank != self._world.rank]
        answers_before = {rank: self._board.read(rank) for rank in ranks}
        end = time.monotonic() + 3 * BEAT_S
        while time.monotonic() < end and not self._closed.wait(BEAT_S / 2):
            self._tell()
        return {rank: spoken(answers_before[rank], self._board.read(rank)) for rank in ranks}


def explain(
    rank: int, own_status: Status, statuses: dict[int, tuple[Status | None, bool]], size: int, heard: bool
) -> list[str]:
    """Lines that say which rank waits for which.

    `statuses`: by other rank, the last one, and whether it still gives signs of life; `heard`: whether the server of
    the rendezvous store answered.
    """
    if size == 1:
        return []
    if not heard:
        return [
            "it knows nothing of the other ranks: horovodrun's rendezvous server did not answer, because the network "
            "or horovodrun's host is gone, or because ranks are joined by MPI, which has none"
        ]
    lines = []
    everyone = {rank: (own_status, True), **statuses}
    for other_rank in sorted(statuses):
        status, answers = statuses[other_rank]
        if status is None:
            lines.append(f"rank {other_rank}: never gave a sign of life")
        else:
            silent = "" if answers else f"{SILENT} It was at "
            lines.append(f"rank {other_rank} on {status.host}: {silent}step {status.step}, {status.doing}")
    blamed = [other_rank for other_rank, (_, answers) in sorted(everyone.items()) if not answers]
    blamed = blamed or [other_rank for other_rank, (status, _) in sorted(everyone.items()) if not status.waits]
    waiting = [other_rank for other_rank in sorted(everyone) if other_rank not in blamed]
    if blamed and waiting:
        lines.append(f"so {_ranks(waiting)} wait{'s' * (len(waiting) == 1)} for {_ranks(blamed)}")
    elif not blamed:
        lines.append("so all ranks wait for each other: the network between them carries nothing, or ranks differ")
    return lines


def silent_ranks(rank: int, size: int, seconds: float) -> list[str]:
    """Listen for `seconds` to the other ranks, when collectives have failed: says of each that it is silent.

    Ranks that have ended in order are not silent. The list is empty too if nothing can be heard of any rank.
    """
    board, ranks = RendezvousBoard(), [other_rank for other_rank in range(size) if other_rank != rank]
    before = {other_rank: board.read(other_rank) for other_rank in ranks}
    time.sleep(seconds)
    statuses = {other_rank: spoken(before[other_rank], board.read(other_rank)) for other_rank in ranks}
    return [
        f"rank {other_rank} on {status.host} {SILENT} It was at step {status.step}, {status.doing}"
        for other_rank, (status, answers) in statuses.items()
        if status is not None and not answers and status.doing != _ENDED
    ]


def spoken(before: Any, after: Any) -> tuple[Status | None, bool]:
    """A rank's last status, of two answers of the board, and whether the rank gave a sign of life between them."""
    if after is None:
        return None, False
    return Status(*after), before is not None and after[0] != before[0]


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
