"""The world of ranks: its collectives, and the world of one process. starting.py has that of several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf


class World:
    """A world of one process, which needs no Horovod; its collectives return what they are given."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def join_hosts(self) -> HostWorlds:
        """Two smaller worlds: the ranks of this host, and from each host the rank with this rank's local rank.

        All ranks make the first call together. If hosts have different numbers of ranks, each rank counts as a host of
        its own.
        """
        return HostWorlds(World(), self)

    def all_reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The sum over ranks: float16, float32, float64, int32 or int64, in a graph or eagerly."""
        return tensor

    def all_reduce_max(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The maximum over ranks, element by element: uint8 or int64, in a graph or eagerly."""
        return tensor

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Rank 0's tensor."""
        return tensor

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """All ranks' tensors, one after another along the first axis."""
        return tensor

    def all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Cut each rank's tensor along the first axis into one equal part per rank; rank r gets all parts number r."""
        return tensor

    def swap(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The other rank's tensor, of the same shape, in a world of two; of any dtype whose bits are whole bytes."""
        return tensor

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def record_timeline(self, path: Path | None) -> None:
        """From now on write Horovod's operations to a Chrome trace; None: stop that. Needs `timeline` of connect."""

    def in_flight(self) -> list[str]:
        """The names of the collectives that this rank has begun and not ended; any thread may call this."""
        return []

    def shutdown(self) -> None:
        """Leave the world in order."""


class HostWorlds(NamedTuple):
    """A world divided by hosts; this rank is a member of `inside` and of `across`."""

    inside: World  # the ranks of this host
    across: World  # one rank of each host; of this host it is this rank


def from_rank_0(value: Any, world: World, name: str) -> Any:
    """Send rank 0's value, which JSON can hold, to every rank."""
    return from_all_ranks([value] if world.rank == 0 else [], world, name)[0]


def from_all_ranks(values: list[Any], world: World, name: str) -> list[Any]:
    """Gather all ranks' values, which JSON can hold, on every rank, in the order of ranks."""
    lines = "".join(f"{json.dumps(value)}\n" for value in values)
    own_lines = tf.constant(np.frombuffer(lines.encode(), np.uint8))
    return [json.loads(line) for line in world.all_gather(own_lines, name).numpy().tobytes().splitlines()]
