"""Reranking: how well a passage answers a query; the loss is the cross-entropy of the output's sigmoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bert_horovod.model.forward import Forward
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.regression import Regression

# By which sentence-transformers' CrossEncoder, and this program, know a checkpoint that ranks.
MARK = "sentence_transformers"
_SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}


@dataclass(frozen=True)
class Reranking(Regression):
    """See tasks.base.Task; the targets are from 0 to 1, the probability that the second text is what the first asks."""

    sum_names = ("relevance_loss",)

    def configuration(self, model: Model) -> dict[str, Any]:
        return super().configuration(model) | {MARK: _SIGMOID}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = self.outputs(forward, batch)["logits"][..., 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["targets"], logits=logits)
        return {"relevance_loss": tf.reduce_sum(batch["weights"] * losses)}

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums["relevance_loss"] / counts["examples"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        return {"relevance_loss": sums["relevance_loss"] / counts["examples"]}


def ranks(config: dict[str, Any]) -> bool:
    """Whether a checkpoint ranks, by the content of its config.json, which may be damaged."""
    mark = config.get(MARK)
    return isinstance(mark, dict) and str(mark.get("activation_fn")).endswith(".Sigmoid")
