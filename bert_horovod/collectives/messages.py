"""Send values that JSON can hold from rank to rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World


def from_rank_0(value: Any, world: World, name: str) -> Any:
    """Send rank 0's value, which JSON can hold, to every rank."""
    return from_all_ranks([value] if world.rank == 0 else [], world, name)[0]


def from_all_ranks(values: list[Any], world: World, name: str) -> list[Any]:
    """Gather all ranks' values, which JSON can hold, on every rank, in the order of ranks."""
    lines = "".join(f"{json.dumps(value)}\n" for value in values)
    own_lines = tf.constant(np.frombuffer(lines.encode(), np.uint8))
    return [json.loads(line) for line in world.all_gather(own_lines, name).numpy().tobytes().splitlines()]
