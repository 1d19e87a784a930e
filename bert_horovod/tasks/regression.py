"""Regression: a real number for a text or a pair of texts; the loss is the mean squared error, as in Hugging Face."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.costs.products import Product
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import Shapes, class_name
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.text_head import ARCHITECTURE, text_outputs, text_products, text_shapes


@dataclass(frozen=True)
class Regression:
    """See tasks.base.Task; batches/labelled.py makes the rows, with targets.

    `label`: the number's name; `text_columns`: the texts' column names in files.
    """

    label: str = "score"
    text_columns: tuple[str, ...] = ()
    counts = ("examples",)
    sum_names = ("squared_error",)

    def parameters(self, model: Model) -> Shapes:
        return text_shapes(model, 1)

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [class_name(model, ARCHITECTURE)],
            "id2label": {"0": self.label},
            "label2id": {self.label: 0},
            "num_labels": 1,
            "problem_type": "regression",
            "text_columns": list(self.text_columns),
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        return text_products(model, rows, length, slots["examples"], 1)

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        return {"examples": np.count_nonzero(batch["weights"])}

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"logits": text_outputs(forward, batch)}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        errors = text_outputs(forward, batch)[..., 0] - batch["targets"]
        return {"squared_error": tf.reduce_sum(batch["weights"] * errors**2)}

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums["squared_error"] / counts["examples"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        return {"squared_error": sums["squared_error"] / counts["examples"]}
