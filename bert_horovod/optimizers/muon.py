"""Muon: the momentum of a layer's matrix, made orthogonal; AdamW for all other parameters.

    matrices of layers (query, key and value each on its own, also where they are one parameter):
        m = mu m + (1 - mu) g ;  u = mu m + (1 - mu) g                                  Nesterov's momentum
        X = orthogonal(u) ;  x -= lr (0.2 sqrt(max(rows, columns)) X + wd x)
    embeddings, heads, pooler, biases and LayerNorms:
        AdamW (adamw.py, bias-corrected) with the learning rate lr * optimizer.adamw_rate

    orthogonal(u), the wide side last:  X = u / (||u|| + 1e-7)
        five times:  A = X X^T ;  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X

(Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. The length 0.2 sqrt(max(rows, columns)) is that of
Liu et al. 2025, arXiv 2502.16982: an update has the root mean square of AdamW's, so that lr and wd are AdamW's own;
Jordan's is sqrt(max(1, rows / columns)).) The five Newton-Schulz steps bring all singular values near 1: between 0.7
and 1.2. A matrix has one slot, m, in place of AdamW's two.

Matrices of one shape are multiplied as one batch. Every rank computes all of them, in the same dtype: that of
training/agreement.agree_on_products.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

from bert_horovod.model.parameters import LAYERS, joined_matrices
from bert_horovod.optimizers.base import Rule, adam_direction, moving_average, next_moments
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Optimizer, Shape
from bert_horovod.runtime import lazy_tensorflow as tf

_STEPS = 5  # Newton-Schulz steps X = a X + (b A + c A A) X
_A, _B, _C = 3.4445, -4.7750, 2.0315
_LEAST_NORM = 1e-7
_LENGTH = 0.2  # root mean square of an update of AdamW


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Muon) -> dict[str, tf.Tensor]:
    """See `base.Rule`."""
    if "v" in slots:
        return next_moments(g, slots, settings)
    return {"m": moving_average(slots["m"], g, settings.momentum)}


def directions(
    x: tf.Tensor,
    g: tf.Tensor,
    slots: dict[str, tf.Tensor],
    t: tf.Tensor,
    decay: bool,
    settings: Muon,
    products: str = "float32",
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`; a tensor with a slot v is AdamW's. `products`: the dtype of matrix products."""
    if "v" in slots:
        direction, share = adam_direction(slots, settings, t), settings.adamw_rate
    else:
        length = _LENGTH * max(g.shape[1:]) ** 0.5
        momentum = moving_average(g, slots["m"], 1 - settings.momentum)
        direction, share = length * orthogonal(momentum, products), 1.0
    return (share * (direction + settings.weight_decay * x if decay else direction),)


def orthogonal(matrices: tf.Tensor, products: str = "float32") -> tf.Tensor:
    """Bring the singular values of matrices near 1 by Newton-Schulz steps; a matrix of zeros stays.

    float32 [n, rows, columns] to float32 of the same shape; `products`: the dtype of the products between.
    """
    upright = matrices.shape[1] > matrices.shape[2]
    x = matrices / (tf.norm(matrices, axis=(1, 2), keepdims=True) + _LEAST_NORM)
    x = tf.cast(tf.linalg.matrix_transpose(x) if upright else x, products)
    for _ in range(_STEPS):
        square = tf.matmul(x, x, transpose_b=True)
        x = _A * x + tf.matmul(_B * square + _C * tf.matmul(square, square), x)
    x = tf.cast(x, tf.float32)
    return tf.linalg.matrix_transpose(x) if upright else x


@functools.cache
def _rule(products: str) -> Rule:
    return replace(Muon.rule, directions=functools.partial(directions, products=products))


@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonal updates of the layers' matrices; AdamW for all other parameters."""

    name: str = named("muon")
    momentum: float = setting(0.95, minimum=0, below=1)  # decay of the momentum of the layers' matrices
    # Learning rate of the parameters that AdamW updates (with beta_1, beta_2, epsilon): a multiple of the phase's
    adamw_rate: float = setting(1.0, above=0)

    multiplies: ClassVar[bool] = True
    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule("muon", slots, next_slots, directions)

    def rule_in(self, products: str) -> Rule:
        return _rule(products)

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        return None if slot == "v" and self.batched(name, shape) else shape

    def batched(self, name: str, shape: Shape) -> bool:
        return name.startswith(LAYERS) and len(shape) == 2

    def flops(self, shapes: dict[str, Shape]) -> float:
        total = 0.0
        for name, shape in shapes.items():
            if self.batched(name, shape):
                matrices = joined_matrices(name)
                short, long = sorted((shape[0] // matrices, shape[1]))
                total += matrices * _STEPS * (4 * short**2 * long + 2 * short**3)
        return total
