"""The second file of a toy kind: a count by Poisson's distribution; its mean is e to the head's output."""

from typing import Any, ClassVar

import tensorflow as tf

from bert_horovod.tasks.text_head import TextTask

KEY = "toy_counts"  # of config.json: by it a checkpoint is told from other classifiers


class Counting(TextTask):
    """See tasks.base.Task."""

    output_names, text_columns, problem_type = ("log_mean",), (), "regression"
    sum_names = ("count_loss",)
    means: ClassVar = {"count_loss": "count_loss"}

    def configuration(self, model: Any) -> dict[str, Any]:
        return super().configuration(model) | {KEY: True}

    def sums(self, forward: Any, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        log_mean, counts = self.outputs(forward, batch)["logits"][..., 0], tf.cast(batch["counts"], tf.float32)
        return {"count_loss": tf.reduce_sum(batch["weights"] * (tf.exp(log_mean) - counts * log_mean))}
