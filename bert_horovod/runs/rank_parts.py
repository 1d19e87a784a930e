"""Each rank's own state (TrainingState.per_rank) as parts of a checkpoint: training/rank-00003.safetensors.

Each rank writes its part in a thread, to a file whose name contains the hash; rank 0 moves the parts into the
checkpoint. If some rank does not see the output directory, rank 0 gathers and writes the parts of all ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_horovod.collectives.world import from_rank_0
from bert_horovod.errors import DamagedData, RunError
from bert_horovod.exchange.owed import OwedLayout, shares, total
from bert_horovod.interchange.safetensors_file import map_file, write_file
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.thread_priority import lower_priority

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World

_WAITING = re.compile(r"\.part-step-(\d{8,})-rank-(\d{5,})-([0-9a-f]{64})")
_UNFINISHED = re.compile(r"\.part-(step-\d{8,}-rank-\d{5,}\.partial|seen-[0-9a-f]{32})")
_POLL_S = 0.2
_RETRY_S = 5  # seconds from a failure to the next try


def part_file(rank: int) -> str:
    """The file of a rank's part, in a checkpoint."""
    return f"training/rank-{rank:05d}.safetensors"


class PartWriter:
    """Writes this rank's part; all ranks construct a PartWriter together."""

    def __init__(self, checkpoints: Path, world: World, say: Callable[[str], None]) -> None:
        self.checkpoints, self._world, self._say = checkpoints, world, say
        self._thread = ThreadPoolExecutor(1, "save part", lower_priority)
        self._writing: Future | None = None
        self._newest_step = -1
        self._failures = 0
        self._own = self._all_see()

    def write(self, step: int, variables: dict[str, tf.Variable]) -> None:
        """Copy the variables and begin to write them; all ranks call it together. Gives up parts of earlier steps."""
        self._newest_step = step
        if self._writing is not None:
            self._writing.result()
        if self._own:
            parts = {self._world.rank: {name: variable.numpy() for name, variable in variables.items()}}
        else:
            gathered: dict[str, np.ndarray] = {}
            for name, variable in variables.items():
                everyone = self._world.all_gather(variable.read_value()[None], f"part.{name}")
                if self._world.rank == 0:
                    gathered[name] = everyone.numpy()
            parts = {
                rank: {name: of_ranks[rank] for name, of_ranks in gathered.items()}
                for rank in (range(self._world.size) if self._world.rank == 0 else ())
            }
        self._writing = self._thread.submit(self._write, step, parts)

    def finish(self, wait: Callable[[], None], must_end: Callable[[], bool] = lambda: False) -> None:
        """Wait until all parts are written; calls `wait` again and again meanwhile.

        Raises RunError if writing goes on failing when `must_end` says that there is no time.
        """
        failures: int | None = None  # when must_end first said so
        while self._writing is not None and not self._writing.done():
            if must_end():
                failures = self._failures if failures is None else failures
                if self._failures > failures:
                    raise RunError(
                        f"cannot write this rank's part of the checkpoint to {self.checkpoints}: make room and run the "
                        "same command again. The run was asked to stop: the steps since the last checkpoint are lost"
                    )
            wait()
            time.sleep(_POLL_S)
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Try no longer what cannot be written: Python waits for the thread before it exits."""
        self._newest_step = -1

    def _write(self, step: int, parts: dict[int, dict[str, np.ndarray]]) -> None:
        while parts:
            rank, arrays = next(iter(parts.items()))
            partial = self.checkpoints / f".part-step-{step:08d}-rank-{rank:05d}.partial"
            try:
                self.checkpoints.mkdir(exist_ok=True)
                digest = write_file(partial, arrays)
                os.rename(partial, partial.with_name(f"{partial.stem}-{digest}"))
                del parts[rank]
            except OSError as error:
                if step != self._newest_step:
                    return
                partial.unlink(missing_ok=True)
                self._failures += 1
                self._say(f"warning: cannot write {partial}: {error.strerror or error}. Trying again: make room")
                time.sleep(_RETRY_S)

    def _all_see(self) -> bool:
        """Whether every rank sees a file that rank 0 writes to the directory of checkpoints."""
        token = self.checkpoints / f".part-seen-{from_rank_0(uuid.uuid4().hex, self._world, 'token')}"
        if self._world.rank == 0:
            with contextlib.suppress(OSError):  # else a full disk would end the run: writing a part waits for room
                self.checkpoints.mkdir(exist_ok=True)
                token.touch()
        self._world.barrier()
        seeing_ranks = int(
            self._world.all_reduce(tf.constant([int(token.exists())], tf.int32), "parts.seen").numpy()[0]
        )
        if self._world.rank == 0:
            with contextlib.suppress(OSError):
                token.unlink()
        return seeing_ranks == self._world.size


def remove_waiting(checkpoints: Path, step: int | None = None) -> None:
    """Remove parts that are in no checkpoint: those of steps before `step`, or (None) all that a killed run left."""
    for part in checkpoints.glob(".part-*"):
        waiting = _WAITING.fullmatch(part.name)
        of_a_killed_run = step is None and (waiting or _UNFINISHED.fullmatch(part.name))
        if of_a_killed_run or (waiting and step is not None and int(waiting[1]) < step):
            part.unlink(missing_ok=True)


def take(checkpoints: Path, step: int, ranks: int, patience_s: float) -> dict[int, tuple[Path, str]]:
    """Wait until all ranks have written their parts of a step; returns by rank the file and its SHA-256.

    Raises RunError if a part is still missing after `patience_s` seconds.
    """
    end = time.monotonic() + patience_s
    while True:
        parts: dict[int, tuple[Path, str]] = {}
        for path in checkpoints.glob(f".part-step-{step:08d}-rank-*"):
            if waiting := _WAITING.fullmatch(path.name):
                parts[int(waiting[2])] = (path, waiting[3])
        if len(parts) == ranks:
            return parts
        if time.monotonic() > end:
            missing_ranks = [rank for rank in range(ranks) if rank not in parts]
            raise RunError(
                f"cannot write the checkpoint of step {step}: ranks {missing_ranks} have not written their parts"
            )
        time.sleep(_POLL_S)


def restore(
    checkpoint: Path, saved: OwedLayout, layout: OwedLayout, shapes: dict[str, tuple[int, ...]], world: World
) -> dict[str, np.ndarray]:
    """Read this rank's own state from a checkpoint, float32 by variable.

    With the saved layout each rank gets the part that it saved. With another layout each rank gets an equal share of
    the sum that all ranks owed (exchange/owed.py).

    Raises DamagedData, on rank 0, if a part does not fit the checkpoint's own layout.
    """
    if saved == layout and _all_see_theirs(checkpoint, world):
        return {name: np.array(array) for name, array in map_file(checkpoint / part_file(world.rank)).items()}
    parts = [map_file(checkpoint / part_file(rank)) for rank in range(saved.ranks)] if world.rank == 0 else []
    names = from_rank_0(sorted(parts[0]) if parts else [], world, "parts.names")
    if saved == layout:
        return _as_it_was(parts, names, world)
    owed = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    if parts:
        try:
            owed = total(parts, saved, shapes)
        except ValueError as error:
            raise DamagedData(
                f"{checkpoint}: what ranks kept does not fit: {error}; take another checkpoint"
            ) from error
    for name in shapes:
        owed[name] = world.broadcast(tf.constant(owed[name]), f"owed.{name}").numpy()
    return shares(owed, names, layout, world.rank)


def restore_copies(checkpoint: Path, saved_ranks: int, world: World) -> dict[str, np.ndarray]:
    """Read this rank's copy of the state (TrainingState.copy_to_train) from a checkpoint, float32 by variable.

    With as many ranks as saved it each rank gets its own copy, with another number all get the mean of the copies. The
    arguments are those of `restore`.
    """
    if saved_ranks == world.size and _all_see_theirs(checkpoint, world):
        return {name: np.array(array) for name, array in map_file(checkpoint / part_file(world.rank)).items()}
    parts = [map_file(checkpoint / part_file(rank)) for rank in range(saved_ranks)] if world.rank == 0 else []
    names = from_rank_0(sorted(parts[0]) if parts else [], world, "parts.names")
    if saved_ranks == world.size:
        return _as_it_was(parts, names, world)
    means = {name: np.mean([part[name] for part in parts], 0) for name in names} if parts else {}
    return _broadcast(means, names, world)


def _all_see_theirs(checkpoint: Path, world: World) -> bool:
    sees = tf.constant([int((checkpoint / part_file(world.rank)).is_file())], tf.int32)
    return int(world.all_reduce(sees, "parts.seen").numpy()[0]) == world.size


def _as_it_was(parts: list[dict[str, np.ndarray]], names: list[str], world: World) -> dict[str, np.ndarray]:
    own_arrays: dict[str, np.ndarray] = {}
    for rank in range(world.size):
        arrays = _broadcast(parts[rank] if parts else {}, names, world)
        if rank == world.rank:
            own_arrays = arrays
    return own_arrays


def _broadcast(arrays: dict[str, np.ndarray], names: list[str], world: World) -> dict[str, np.ndarray]:
    """Rank 0's arrays, float32, on every rank."""
    received = {}
    for name in names:
        shape = from_rank_0(list(arrays[name].shape) if arrays else None, world, "parts.shape")
        array = arrays[name] if arrays else np.zeros(shape, np.float32)
        received[name] = world.broadcast(tf.constant(array), "parts.values").numpy()
    return received
