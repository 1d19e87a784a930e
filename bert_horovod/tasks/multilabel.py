"""Classification of texts and pairs of texts: any number of labels of each, also none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bert_horovod.model.forward import Forward
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.text_head import TextTask

THRESHOLD, SEPARATOR = "label_threshold", "label_separator"  # our keys of config.json


@dataclass
class Multilabel(TextTask):
    """See tasks.base.Task; batches/examples/labelled.py makes the rows, with targets [rows, examples, labels].

    The loss is that of transformers' problem_type "multi_label_classification": binary cross-entropy of the sigmoid of
    each logit, the mean over labels and examples.

    `labels`: the names of the labels, in the order of their numbers; `text_columns`: the texts' column names in files;
    `separator`: between labels in a field of a file; `threshold`: a label is given from this probability on. An
    evaluation may change the threshold (finetuning/classifier.py); later checkpoints then have the new one.
    `class_weights`: factors of the loss of examples that have a label, by label; none: 1.
    """

    labels: tuple[str, ...]
    text_columns: tuple[str, ...] = ()
    separator: str = ","
    threshold: float = 0.5
    class_weights: tuple[float, ...] = ()
    problem_type = "multi_label_classification"
    sum_names = ("label_loss", "label_correct")
    # label_accuracy: the fraction of (example, label) that is right at a threshold of 0.5
    means: ClassVar = {"label_loss": "label_loss", "label_correct": "label_accuracy"}

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.labels

    def configuration(self, model: Model) -> dict[str, Any]:
        return super().configuration(model) | {THRESHOLD: self.threshold, SEPARATOR: self.separator}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits, targets = self.outputs(forward, batch)["logits"], batch["targets"]
        if self.class_weights:
            weights = tf.constant(self.class_weights, tf.float32)
            losses = tf.nn.weighted_cross_entropy_with_logits(targets, logits, weights)  # (rows, examples, labels)
        else:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        correct = tf.cast(tf.equal(logits > 0, targets > 0), tf.float32)
        means = (tf.reduce_mean(each, -1) for each in (losses, correct))
        totals = [tf.reduce_sum(mean * batch["weights"]) for mean in means]
        return dict(zip(self.sum_names, totals, strict=True))
