"""What a task is: what is learned from a batch.

A task is a file of this package. The loop, the step and the exchange know its interface alone.
"""

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_horovod.costs.products import Product
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import Shapes
from bert_horovod.recipe.sections import Model


class Task(Protocol):
    """What is learned from a batch.

    A loss is a sum over a micro-batch divided by a count over all ranks, so that it does not depend on how a global
    batch is split. `counts` names the counts, `sum_names` the sums.
    """

    counts: tuple[str, ...]  # such as ("masked_tokens", "sequences")
    sum_names: tuple[str, ...]  # such as ("mlm_loss", "mlm_correct"); the order is that of the step's vector

    def parameters(self, model: Model) -> Shapes:
        """Names and shapes of encoder and heads, in forward order: gradient buckets follow it backwards."""

    def configuration(self, model: Model) -> dict[str, Any]:
        """What a checkpoint's config.json says beside the sizes, in Hugging Face's words: architectures, labels."""

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        """The matrix products of a micro-batch's forward pass; `slots` are those of the batch's source."""

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        """The counts of some rows, on the host."""

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sums over a micro-batch: float32 scalars by the names of `sum_names`."""

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        """The loss in nats, from sums and global counts: tensors in the step, Python numbers in reports."""

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        """Means for people, by the names that metrics.jsonl has; the loss is not among them."""


class PredictingTask(Task, Protocol):
    """A task whose model answers questions about rows, as every fine-tuned one does."""

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What a prediction is made of, float32 [rows, ...] each, by Hugging Face's names, such as "logits"."""
