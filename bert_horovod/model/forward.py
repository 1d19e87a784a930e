"""What every part of a forward pass is given."""

from dataclasses import dataclass

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.recipe.sections import Model


@dataclass(frozen=True)
class Forward:
    """One forward pass: its sizes, its weights and how it is computed. Encoder and heads take it with a batch."""

    model: Model
    weights: dict[str, tf.Tensor]  # cast weights, see weights.py
    policy: ComputePolicy
    dropout: DropoutState | None = None  # None: no dropout

    def affine(self, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Weight and bias of a dense layer or a LayerNorm, by a name of parameters.py such as POOLER."""
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
