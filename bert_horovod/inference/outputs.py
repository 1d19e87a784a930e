"""Compute a task's outputs for all rows of a source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bert_horovod.batches.source import Source
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.model.forward import ComputePolicy, Forward, as_tensors
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import PredictingTask

_BLOCK_POSITIONS = 4096  # of the rows that are computed at once


def block_rows(sequence_length: int) -> int:
    """Rows of a block: depends on the sequence length alone, so that a row's outputs are the same bits everywhere."""
    return max(1, _BLOCK_POSITIONS // sequence_length)


class NotFiniteError(UserError):
    """A model's outputs are not finite."""


def require_finite_outputs(outputs: dict[str, np.ndarray]) -> None:
    """Raise NotFiniteError if an output, by name, has values that are not finite."""
    for name, output in outputs.items():
        if not np.isfinite(output).all():
            raise NotFiniteError(
                f"the model's {name} are not finite for {np.count_nonzero(~np.isfinite(output))} of {output.size:,} "
                "values: its parameters are too large, as after a training that has diverged; take another checkpoint"
            )


class RowOutputs:
    """Computes a task's outputs row by row of a source, each row once, whatever the number of ranks.

    Rows are computed in blocks of `rows` (see block_rows), the same for every number of ranks, so that a row's outputs
    are the same bits. Every rank computes a contiguous share of the blocks.
    """

    def __init__(self, task: PredictingTask, model: Model, policy: ComputePolicy, rows: int, world: World) -> None:
        self._rows = rows
        self._world = world

        @tf.function(autograph=False)
        def outputs_of(parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return task.outputs(Forward(model, cast_weights(parameters, policy.dtype), policy), batch)

        self._outputs = outputs_of

    def __call__(
        self, variables: dict[str, tf.Variable], source: Source, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs by the task's names for them, float32 [source.count, ...] each; equal on all ranks.

        `progress` is called with the number of rows that this rank has done, and the number that it has to do. Raises
        NotFiniteError.
        """
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        size, blocks = self._rows, -(-source.count // self._rows)
        first, last = (blocks * rank // self._world.size for rank in (self._world.rank, self._world.rank + 1))
        parts_of: dict[str, list[np.ndarray]] = {}
        # A rank without a block computes a block of padding, because it must know the outputs' shapes.
        for block in range(first, max(last, first + 1)):
            rows = np.arange(block * size, (block + 1) * size)
            real = (rows < source.count) & (block < last)
            batch = as_tensors(source.assemble(np.where(real, rows, -1)))
            for name, output in self._outputs(parameters, batch).items():
                parts_of.setdefault(name, []).append(output.numpy()[real])
            if progress:
                mine = min(last * size, source.count) - first * size
                progress(min((block + 1 - first) * size, mine), mine)
        joined = {name: np.concatenate(parts) for name, parts in parts_of.items()}
        outputs = {
            name: self._world.all_gather(tf.constant(output), f"outputs/{name}").numpy()
            for name, output in joined.items()
        }
        require_finite_outputs(outputs)
        return outputs
