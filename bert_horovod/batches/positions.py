"""Chooses the positions of the endless row sequence that a rank takes in an optimizer step."""

import numpy as np

from bert_horovod.errors import UserError


def micro_batch_count(global_batch: int, world_size: int, micro_batch: int) -> int:
    """Micro-batches per rank and optimizer step: K = ceil(global_batch / (world_size * micro_batch)).

    Raises UserError if the global batch has fewer rows than there are ranks.
    """
    if global_batch < world_size:
        raise UserError(
            f"global_batch = {global_batch} is a batch that the ranks cannot share: there are {world_size} "
            "ranks and each needs at least one row; use fewer ranks or a larger global_batch"
        )
    return -(-global_batch // (world_size * micro_batch))


def step_positions(
    step_in_phase: int, global_batch: int, rank: int, world_size: int, micro_batch: int
) -> list[tuple[np.ndarray, int]]:
    """The positions that a rank takes in one optimizer step, micro-batch by micro-batch.

    Step t takes positions [t * global_batch, (t + 1) * global_batch). Each rank takes one contiguous run of them; the
    lengths of the runs differ by one at most. It fills its micro-batches in order, and the last one up with -1.

    Returns K tuples (positions, start). positions: int64 [micro_batch], -1 where there is no row. start: the place of
    the micro-batch's first row in the global batch, in [0, global_batch]; its row j, if there is one, has start + j.
    Raises UserError for fewer rows than ranks.
    """
    count = micro_batch_count(global_batch, world_size, micro_batch)
    first, last = (global_batch * r // world_size for r in (rank, rank + 1))
    numbers = []
    for k in range(count):
        start = min(first + k * micro_batch, last)
        rows = np.arange(start, start + micro_batch, dtype=np.int64)
        numbers.append((np.where(rows < last, step_in_phase * global_batch + rows, -1), start))
    return numbers
