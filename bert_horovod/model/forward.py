"""The argument that encoder and heads share: sizes, cast weights, compute policy and dropout of a forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf


@dataclass(frozen=True)
class Forward:
    """One forward pass: its sizes, cast weights, compute policy and dropout. Encoder and heads take it with a batch."""

    model: Model
    weights: dict[str, tf.Tensor]  # cast weights, see weights.py
    policy: ComputePolicy
    dropout: DropoutState | None = None  # None: no dropout

    def affine(self, name: str) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Weight and bias of a dense layer or a LayerNorm; `name` is a constant of parameters.py such as POOLER.

        The bias is None where the architecture has none.
        """
        return self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")

    def with_values(self, values: Iterable[tf.Tensor]) -> Forward:
        """The same pass with other weights, in the order of `weights`."""
        return dataclasses.replace(self, weights=dict(zip(self.weights, values, strict=True)))
