"""Who makes a row index side by side: threads of this process, processes of an executor, or ranks of all hosts."""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World, from_all_ranks, from_rank_0
from bert_horovod.corpus.preparing.pool import run_jobs


class Crew:
    """This process alone, in as many threads as it may use cores. Members are numbered from 0."""

    number, size = 0, 1

    def exchange(self, value: Any) -> list[Any]:
        """Give all members' values, which JSON can hold, to all; waits for them."""
        return [value]

    def each(self, work: Callable[[int], None], numbers: Sequence[int], done: Callable[[int], None]) -> None:
        """Call a function of a module (perhaps a partial) with each number, in any order; then `done`, here."""
        with ThreadPoolExecutor(self.threads) as threads:  # NumPy releases the GIL
            for number, _ in zip(numbers, threads.map(work, numbers), strict=True):
                done(number)

    @property
    def threads(self) -> int:
        """Cores that this member may use."""
        return len(os.sched_getaffinity(0))


class PoolCrew(Crew):
    """This process, and an executor's processes, which do the work; `directory`: for their signs of life."""

    def __init__(self, executor: Executor, directory: Path) -> None:
        self._executor, self._directory = executor, directory

    def each(self, work: Callable[[int], None], numbers: Sequence[int], done: Callable[[int], None]) -> None:
        jobs = [(work, number) for number in numbers]
        for place, _ in run_jobs(self._executor, _call, jobs, self._directory, lambda *_: None):
            done(numbers[place])


def _call(job: tuple[Callable[[int], None], int], _: Callable[[int, int], None]) -> None:
    work, number = job
    work(number)


class RankCrew(Crew):
    """Ranks that see one directory; `members`: their ranks, ascending, this one's included."""

    def __init__(self, world: World, members: list[int]) -> None:
        self._world, self._members = world, members
        self.number, self.size = members.index(world.rank), len(members)

    def exchange(self, value: Any) -> list[Any]:
        values = from_all_ranks([value], self._world, "row_index")
        return [values[rank] for rank in self._members]

    @property
    def threads(self) -> int:
        return max(1, super().threads // self._world.local_size)


def rank_crew(directory: Path, is_missing: bool, world: World) -> tuple[RankCrew, bool] | None:
    """The crew of this rank, and whether a file is missing for it; None if no rank lacks it. All ranks call together.

    Ranks that see the same `directory` are a crew; a host that has one of its own is a crew alone.
    """
    if not any(from_all_ranks([is_missing], world, "missing_files")):
        return None
    mark = directory / f".seen-by-{uuid.uuid4().hex}"
    if world.rank == 0:
        with contextlib.suppress(OSError):  # if it cannot be written, making the index says so
            directory.mkdir(parents=True, exist_ok=True)
            mark.touch()
    mark = directory / from_rank_0(mark.name, world, "mark")
    is_seen = world.rank == 0 or mark.exists()
    facts = from_all_ranks([[socket.gethostname(), is_seen, is_missing]], world, "who_shares")
    if world.rank == 0:
        mark.unlink(missing_ok=True)
    host = socket.gethostname()
    members = [rank for rank, (name, sees, _) in enumerate(facts) if (sees if is_seen else not sees and name == host)]
    return RankCrew(world, members), any(facts[rank][2] for rank in members)
