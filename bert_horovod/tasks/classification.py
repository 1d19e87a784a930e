"""Classification of texts and pairs of texts, as Hugging Face's BertForSequenceClassification does it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.costs.products import Product, matrix_products
from bert_horovod.model.dropout import dropped, random_bytes
from bert_horovod.model.encoder import SITES_PER_LAYER, encode_at
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import label_sums, pooled
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, Shapes, classifier_shapes, encoder_shapes
from bert_horovod.recipe.sections import Model


@dataclass(frozen=True)
class Classification:
    """See tasks.base.Task; rows are those of batches/labelled.py: one example each, [CLS] at place 0.

    `labels`: the names of the labels, in the order of their numbers.
    """

    labels: tuple[str, ...]
    counts = ("examples",)
    sum_names = ("label_loss", "label_correct")

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=True) | classifier_shapes(model, len(self.labels))

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(number): label for number, label in enumerate(self.labels)},
            "label2id": {label: number for number, label in enumerate(self.labels)},
            "num_labels": len(self.labels),
            "problem_type": "single_label_classification",
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        hidden = model.hidden_size
        encoder = matrix_products(model, rows, length, masked_slots=0, sequences=1, pairs=True)
        return [
            *(product for product in encoder if not product.name.startswith("head: ")),
            Product("head: pooler", 1, 1, rows, hidden, hidden),
            Product("head: classifier", 1, 1, rows, len(self.labels), hidden),
        ]

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        return {"examples": np.count_nonzero(batch["weights"])}

    def logits(self, forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Scores of every label, float32 [rows, labels]; the last layer is computed at each [CLS] only."""
        model = forward.model
        hidden = encode_at(forward, batch, tf.zeros_like(batch["input_ids"][:, :1]))[:, 0]
        x, rate = pooled(forward, hidden), model.hidden_dropout_prob
        # The encoder's dropout sites are 0 for the embeddings and SITES_PER_LAYER for each layer; this one comes next.
        site = 1 + SITES_PER_LAYER * model.num_hidden_layers
        x = dropped(x, rate, random_bytes(x.shape.as_list(), rate, site, forward.dropout))
        return tf.cast(dense(x, *forward.affine(CLASSIFIER)), tf.float32)

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"logits": self.logits(forward, batch)}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found = label_sums(self.logits(forward, batch), batch["labels"], batch["weights"])
        return dict(zip(self.sum_names, found, strict=True))

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums["label_loss"] / counts["examples"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        examples = counts["examples"]
        return {"label_loss": sums["label_loss"] / examples, "accuracy": sums["label_correct"] / examples}
