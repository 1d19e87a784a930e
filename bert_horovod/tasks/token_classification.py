"""Classification of words, as in entity recognition: Hugging Face's BertForTokenClassification.

Dropout and a linear layer at every position; the loss is the cross-entropy at the first piece of each word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bert_horovod.costs.derived import HEAD, Product
from bert_horovod.model.architectures.families import class_name
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import head_dropout, label_sums, place_logits
from bert_horovod.model.parameters import CLASSIFIER, Shapes
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import Means, encoder_products, labels_configuration

ARCHITECTURE = "BertForTokenClassification"


@dataclass(frozen=True)
class TokenClassification(Means):
    """See tasks.base.Task; batches/examples/tag_rows.py makes the rows. `labels`: in the order of their numbers."""

    labels: tuple[str, ...]
    counts = ("words",)
    sum_names = ("tag_loss", "tag_correct")
    means: ClassVar = {"tag_loss": "tag_loss", "tag_correct": "tag_accuracy"}

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=False) | classifier_shapes(model, len(self.labels))

    def configuration(self, model: Model) -> dict[str, Any]:
        return {"architectures": [class_name(model, ARCHITECTURE)]} | labels_configuration(self.labels)

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        head = Product(f"{HEAD}classifier", 1, 1, rows * length, len(self.labels), model.hidden_size)
        return [*encoder_products(model, rows, length), head]

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        x = encode(forward, batch)[-1]  # (rows, length, hidden)
        x = head_dropout(forward, x, x.shape.as_list())
        logits = place_logits(forward, tf.reshape(x, [-1, forward.model.hidden_size]), CLASSIFIER)
        return {"logits": tf.reshape(logits, [*batch["input_ids"].shape, len(self.labels)])}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = tf.reshape(self.outputs(forward, batch)["logits"], [-1, len(self.labels)])
        totals = label_sums(logits, *(tf.reshape(batch[name], [-1]) for name in ("labels", "weights")))
        return dict(zip(self.sum_names, totals, strict=True))
