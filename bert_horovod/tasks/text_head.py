"""Heads on a text's [CLS], Hugging Face's BertForSequenceClassification: one label, several, a number, a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bert_horovod.costs.derived import Product, matrix_products
from bert_horovod.model import heads
from bert_horovod.model.architectures.families import class_name, family_of
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import label_sums
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, CROSS_ENCODER, SIGMOID, Shapes
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import Means, labels_configuration

ARCHITECTURE = "BertForSequenceClassification"


class TextTask(Means):
    """What classification and regression share, see tasks.base.Task; batches/examples/labelled.py makes the rows."""

    output_names: tuple[str, ...]  # of the head's outputs, in the order of their numbers
    text_columns: tuple[str, ...]  # the texts' column names in files
    problem_type: str  # as in Hugging Face's configuration
    counts = ("examples",)

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=True) | classifier_shapes(model, len(self.output_names))

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [class_name(model, ARCHITECTURE)],
            **labels_configuration(self.output_names),
            "problem_type": self.problem_type,
            "text_columns": list(self.text_columns),
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        examples, hidden = slots["examples"], model.hidden_size
        everywhere = family_of(model).shared_head and model.classifier_pooling == "mean"
        read = length if everywhere else 0
        encoder = matrix_products(model, rows, length, masked_slots=read, sequences=examples, pairs=True)
        return [
            *(product for product in encoder if not product.name.startswith("head: ")),
            Product("head: pooler", 1, 1, rows * examples, hidden, hidden),
            Product("head: classifier", 1, 1, rows * examples, len(self.output_names), hidden),
        ]

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The head's outputs, `logits`, float32 [rows, examples, outputs]; arguments: see text_features."""
        x = dense(text_features(forward, batch), *forward.affine(CLASSIFIER))
        return {"logits": tf.reshape(tf.cast(x, tf.float32), [*batch["cls_positions"].shape, x.shape[-1]])}


def text_features(forward: Forward, batch: dict[str, Any]) -> tf.Tensor:
    """The heads' input, dropout(heads.text_features), [rows * examples, hidden]; arguments as there."""
    shape = [*batch["cls_positions"].shape, forward.model.hidden_size]
    return heads.head_dropout(forward, heads.text_features(forward, batch), shape)


@dataclass(frozen=True)
class Classification(TextTask):
    """One label of several for a text or a pair of texts; batches/examples/labelled.py makes the rows.

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


@dataclass(frozen=True)
class Regression(TextTask):
    """A real number for a text or a pair of texts; the loss is the mean squared error, as in Hugging Face.

    `label`: the number's name; `text_columns`: the texts' column names in files.
    """

    label: str = "score"
    text_columns: tuple[str, ...] = ()
    problem_type = "regression"
    sum_names = ("squared_error",)
    means: ClassVar = {"squared_error": "squared_error"}

    @property
    def output_names(self) -> tuple[str, ...]:
        return (self.label,)

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        errors = self.outputs(forward, batch)["logits"][..., 0] - batch["targets"]
        return {"squared_error": tf.reduce_sum(batch["weights"] * errors**2)}


THRESHOLD, SEPARATOR = "label_threshold", "label_separator"  # our keys of config.json


@dataclass
class Multilabel(TextTask):
    """Any number of labels of a text or a pair of texts, also none; rows have targets [rows, examples, labels].

    The loss is that of transformers' problem_type "multi_label_classification": binary cross-entropy of the sigmoid of
    each logit, the mean over labels and examples.

    `labels`: the names of the labels, in the order of their numbers; `text_columns`: the texts' column names in files;
    `separator`: between labels in a field of a file; `threshold`: a label is given from this probability on. An
    evaluation may change the threshold (finetuning/kinds/texts.py); later checkpoints then have the new one.
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


@dataclass(frozen=True)
class Reranking(Regression):
    """How well a passage answers a query; the loss is the cross-entropy of the output's sigmoid.

    The targets are from 0 to 1, the probability that the second text is what the first asks.
    """

    sum_names = ("relevance_loss",)
    means: ClassVar = {"relevance_loss": "relevance_loss"}

    def configuration(self, model: Model) -> dict[str, Any]:
        return super().configuration(model) | {CROSS_ENCODER: SIGMOID}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = self.outputs(forward, batch)["logits"][..., 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["targets"], logits=logits)
        return {"relevance_loss": tf.reduce_sum(batch["weights"] * losses)}


def ranks(config: dict[str, Any]) -> bool:
    """Whether a checkpoint ranks, by the content of its config.json, which may be damaged."""
    mark = config.get(CROSS_ENCODER)
    return isinstance(mark, dict) and str(mark.get("activation_fn")).endswith(".Sigmoid")
