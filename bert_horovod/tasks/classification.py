"""Classification of texts and pairs of texts: one label of several."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.costs.products import Product
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import label_sums
from bert_horovod.model.parameters import Shapes, class_name
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.text_head import ARCHITECTURE, text_outputs, text_products, text_shapes


@dataclass(frozen=True)
class Classification:
    """See tasks.base.Task; batches/labelled.py makes the rows.

    `labels`: the names of the labels, in the order of their numbers; `text_columns`: the texts' column names in files.
    """

    labels: tuple[str, ...]
    text_columns: tuple[str, ...] = ()
    counts = ("examples",)
    sum_names = ("label_loss", "label_correct")

    def parameters(self, model: Model) -> Shapes:
        return text_shapes(model, len(self.labels))

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [class_name(model, ARCHITECTURE)],
            "id2label": {str(number): label for number, label in enumerate(self.labels)},
            "label2id": {label: number for number, label in enumerate(self.labels)},
            "num_labels": len(self.labels),
            "problem_type": "single_label_classification",
            "text_columns": list(self.text_columns),
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        return text_products(model, rows, length, slots["examples"], len(self.labels))

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        return {"examples": np.count_nonzero(batch["weights"])}

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"logits": text_outputs(forward, batch)}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = tf.reshape(text_outputs(forward, batch), [-1, len(self.labels)])
        totals = label_sums(logits, *(tf.reshape(batch[name], [-1]) for name in ("labels", "weights")))
        return dict(zip(self.sum_names, totals, strict=True))

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums["label_loss"] / counts["examples"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        examples = counts["examples"]
        return {"label_loss": sums["label_loss"] / examples, "accuracy": sums["label_correct"] / examples}
