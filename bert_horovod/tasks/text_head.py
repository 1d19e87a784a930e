"""Hugging Face's BertForSequenceClassification: pooler, dropout and a linear layer at each example's [CLS]."""

from __future__ import annotations

from typing import Any

from bert_horovod.costs.products import Product, matrix_products
from bert_horovod.model import heads
from bert_horovod.model.architectures.families import class_name, family_of
from bert_horovod.model.dropout import dropped, random_bytes
from bert_horovod.model.encoder import SITES_PER_LAYER
from bert_horovod.model.forward import Forward
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, Shapes
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
    model = forward.model
    x, rate = heads.text_features(forward, batch), model.hidden_dropout_prob
    # The next free dropout site: the encoder's are 0 for the embeddings and SITES_PER_LAYER for each layer.
    site = 1 + SITES_PER_LAYER * model.num_hidden_layers
    shape = [*batch["cls_positions"].shape, model.hidden_size]
    return dropped(x, rate, random_bytes(shape, rate, site, forward.dropout))
