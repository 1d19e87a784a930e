"""Losses and accuracies on held-out rows."""

import numpy as np
import tensorflow as tf

from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.world import World
from bert_horovod.model.heads import loss_sums
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.training.step import as_tensors


class Evaluator:
    """Evaluates on the first `count` held-out rows, the same ones with the same masks every time."""

    def __init__(
        self,
        model: Model,
        pairs: bool,
        compute: ComputePolicy,
        rows: Rows,
        count: int,
        micro_batch: int,
        world: World,
    ) -> None:
        self.count = min(count, rows.count)
        self._rows = rows
        self._micro_batch = micro_batch
        self._world = world
        self._pairs = pairs

        @tf.function(autograph=False)
        def forward(parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
            weights = cast_weights(parameters, compute.dtype)
            sums = loss_sums(weights, model, pairs, batch, compute)
            counts = [tf.reduce_sum(batch["masked_weights"]), tf.reduce_sum(batch["sequence_weights"])]
            return tf.cast(tf.stack([*sums, *counts]), tf.float64)

        self._forward = forward

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """Means over the held-out rows, in nats and fractions; every rank takes its share and gets the result."""
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        first, last = (self.count * rank // self._world.size for rank in (self._world.rank, self._world.rank + 1))
        total = np.zeros(6)
        for start in range(first, last, self._micro_batch):
            positions = np.arange(start, start + self._micro_batch)
            batch = self._rows.assemble(np.where(positions < last, positions, -1))
            total += self._forward(parameters, as_tensors(batch)).numpy()
        total = self._world.all_reduce(tf.constant(total), "evaluation").numpy()
        mlm_loss, mlm_correct, nsp_loss, nsp_correct, masked, sequences = total
        sequences = max(1, sequences)  # few rows may hold single segments alone
        means = {"held_out_mlm_loss": mlm_loss / masked, "held_out_mlm_accuracy": mlm_correct / masked}
        if self._pairs:
            means |= {"held_out_nsp_loss": nsp_loss / sequences, "held_out_nsp_accuracy": nsp_correct / sequences}
        return {name: float(value) for name, value in means.items()}
