"""The interface of a task: which parameters train, and the loss of a batch.

Each task is a module of this package. The loop, the step and the exchange use only this interface.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from bert_horovod.costs.derived import HEAD, Product, matrix_products
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import Shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf


class Task(Protocol):
    """A task: parameters, loss and metrics.

    A loss is a sum over a micro-batch, divided by a count over all ranks. So the loss does not depend on how a global
    batch is split. `counts` names the counts, `sum_names` the sums. The core of a task that predicts a number for each
    row:

        counts, sum_names = ("rows",), ("squared_error",)

        def sums(self, forward, batch):
            at_start = encode_at(forward, batch, batch["sequence_starts"])[:, 0]  # (rows, hidden)
            predicted = dense(pooled(forward, at_start), *forward.affine(CLASSIFIER))[:, 0]  # (rows,)
            return {"squared_error": tf.reduce_sum((predicted - batch["targets"]) ** 2 * batch["weights"])}

        def loss(self, sums, counts):
            return sums["squared_error"] / counts["rows"]
    """

    @property
    def counts(self) -> tuple[str, ...]:
        """Such as ("masked_tokens", "sequences")."""

    @property
    def sum_names(self) -> tuple[str, ...]:
        """Such as ("mlm_loss", "mlm_correct"), in the order of the step's vector of loss sums."""

    def parameters(self, model: Model) -> Shapes:
        """Names and shapes of encoder and heads, in forward order: gradient buckets are in the reverse order."""

    def configuration(self, model: Model) -> dict[str, Any]:
        """Entries of a checkpoint's config.json beside the sizes, by Hugging Face's names: architectures, labels."""

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        """The matrix products of a micro-batch's forward pass; `slots`: places per row, by kind, of the batches."""

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        """The counts of the batch's rows, computed on the host."""

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sums over a micro-batch: float32 scalars by the names of `sum_names`."""

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        """The loss in nats, from sums and global counts: tensors in the step, Python numbers in reports."""

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        """Means for people, by their names in metrics.jsonl; without the loss."""


class PredictingTask(Task, Protocol):
    """A task whose model makes predictions; every fine-tuning task is one."""

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The model's outputs, float32 [rows, ...] each, by Hugging Face's names, such as "logits"."""


@runtime_checkable
class ContrastiveTask(PredictingTask, Protocol):
    """A task whose loss compares vectors of the whole global batch; training/micro_batches.py computes them first.

    In the second pass `sums` is given two more arrays with the batch: `vector_gradients`, the derivative of the sum of
    all losses by each of its vectors, and `first_loss`, the sum of its own losses. Without them, the micro-batch is the
    global batch.
    """

    @property
    def compared(self) -> tuple[str, ...]:
        """The arrays of a batch that the loss reads beside the vectors."""

    def vectors(self, forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The vectors of a micro-batch, float32 [rows, ...]."""

    def batch_loss(self, own: dict[str, tf.Tensor], everyone: dict[str, tf.Tensor]) -> tf.Tensor:
        """The sum of the losses of some rows, float32 scalar.

        `own`: the arrays of `compared` of these rows, and their `vectors`; `everyone`: the same of the global batch,
        filled up with rows of weight zero.
        """


class Means:
    """What tasks of labelled data share: an item of weight 1 counts once, and metrics are sums by that one count."""

    counts: tuple[str, ...]
    sum_names: tuple[str, ...]  # the loss is the mean of the first
    means: ClassVar[dict[str, str]]  # names in metrics.jsonl of the means of sums

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        return {self.counts[0]: int(np.count_nonzero(batch["weights"]))}

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums[self.sum_names[0]] / counts[self.counts[0]]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        return {metric: sums[name] / counts[self.counts[0]] for name, metric in self.means.items()}


def labels_configuration(labels: tuple[str, ...]) -> dict[str, Any]:
    """The names of a head's outputs, as config.json has them."""
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
        "num_labels": len(labels),
    }


def encoder_products(model: Model, rows: int, length: int) -> list[Product]:
    """The matrix products of an encoder whose head reads every position, without the head's."""
    products = matrix_products(model, rows, length, masked_slots=length, sequences=0, pairs=False)
    return [product for product in products if not product.name.startswith(HEAD)]
