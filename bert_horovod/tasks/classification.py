"""Classification of texts and pairs of texts: one label of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import label_sums
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.text_head import TextTask


@dataclass(frozen=True)
class Classification(TextTask):
    """See tasks.base.Task; batches/examples/labelled.py makes the rows.

    `labels`: the names of the labels, in the order of their numbers; `text_columns`: the texts' column names in files;
    `class_weights`: factors of the loss, by label; none: 1.
    """

    labels: tuple[str, ...]
    text_columns: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    problem_type = "single_label_classification"
    sum_names = ("label_loss", "label_correct")
    means: ClassVar = {"label_loss": "label_loss", "label_correct": "accuracy"}

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.labels

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = tf.reshape(self.outputs(forward, batch)["logits"], [-1, len(self.labels)])
        labels, weights = (tf.reshape(batch[name], [-1]) for name in ("labels", "weights"))
        totals = label_sums(logits, labels, weights, self.class_weights)
        return dict(zip(self.sum_names, totals, strict=True))
