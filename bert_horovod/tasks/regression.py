"""Regression: a real number for a text or a pair of texts; the loss is the mean squared error, as in Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.model.forward import Forward
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.text_head import TextTask


@dataclass(frozen=True)
class Regression(TextTask):
    """See tasks.base.Task; batches/examples/labelled.py makes the rows, with targets.

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
