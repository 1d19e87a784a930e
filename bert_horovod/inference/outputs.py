"""A task's outputs for all rows of a source: what predictions and official scores are made of."""

import numpy as np
import tensorflow as tf

from bert_horovod.batches.source import Source
from bert_horovod.collectives.world import World
from bert_horovod.model.forward import Forward
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.base import PredictingTask
from bert_horovod.training.step import as_tensors


class RowOutputs:
    """Computes outputs row by row of a source, each row once, whatever the number of ranks.

    Rows are computed in blocks of `micro_batch`, the same blocks for every number of ranks, so that a row's outputs are
    the same bits.

    Args:
        task: what is computed.
        model: the sizes.
        policy: how the model computes.
        micro_batch: rows at once.
        world: every rank takes a contiguous share of the blocks.
    """

    def __init__(
        self, task: PredictingTask, model: Model, policy: ComputePolicy, micro_batch: int, world: World
    ) -> None:
        self._micro_batch = micro_batch
        self._world = world

        @tf.function(autograph=False)
        def outputs_of(parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return task.outputs(Forward(model, cast_weights(parameters, policy.dtype), policy), batch)

        self._outputs = outputs_of

    def __call__(self, variables: dict[str, tf.Variable], source: Source) -> dict[str, np.ndarray]:
        """float32 [source.count, ...] each, by the names that the task gives; equal on all ranks."""
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        size, blocks = self._micro_batch, -(-source.count // self._micro_batch)
        first, last = (blocks * rank // self._world.size for rank in (self._world.rank, self._world.rank + 1))
        found: dict[str, list[np.ndarray]] = {}
        # A rank without a block computes one of padding, to know the outputs' shapes.
        for block in range(first, max(last, first + 1)):
            rows = np.arange(block * size, (block + 1) * size)
            real = (rows < source.count) & (block < last)
            batch = as_tensors(source.assemble(np.where(real, rows, -1)))
            for name, values in self._outputs(parameters, batch).items():
                found.setdefault(name, []).append(values.numpy()[real])
        joined = {name: np.concatenate(parts) for name, parts in found.items()}
        return {
            name: self._world.all_gather(tf.constant(values), f"outputs/{name}").numpy()
            for name, values in joined.items()
        }
