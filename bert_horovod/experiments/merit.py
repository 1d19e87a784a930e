"""MERIT: a trust ratio per number, from the largest magnitudes in its row, its column and its tensor (2025).

arXiv 2508.20577, as in the authors' code. Experimental: published for language models like GPT-2, never for BERT.

    the caller has clipped g: g / max(1, ||g||_global / max_grad_norm), see `clip_factor`
    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  u = m / (sqrt(v) + eps) + wd x       no bias correction
    matrices:  r_i = max_j |x_ij| / max_j |u_ij| ;  c_j = max_i |x_ij| / max_i |u_ij| ;  w = max |x| / max |u|
               t_ij = max(r_i, c_j, w), or 1 where one of row i's and column j's four maxima is 0
    vectors:   t = max |x| / max |u|, or 1 where either is 0
    x -= lr clip(t u, -1, 1)                                                    t u and clip for each number
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, next_moments, trust_ratio
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    u = slots["m"] / (tf.sqrt(slots["v"]) + settings.epsilon)
    if decay:
        u += settings.weight_decay * x
    return (tf.clip_by_value(_ratios(tf.abs(x), tf.abs(u)) * u, -1.0, 1.0),)


def _ratios(x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """The trust ratio of each number of n tensors; x and u are magnitudes of parameters and directions, [n, ...]."""
    if len(x.shape) == 2:
        return trust_ratio(*_largest(x, u, 1))
    rows, columns = _largest(x, u, 2), _largest(x, u, 1)
    largest = tf.maximum(tf.maximum(trust_ratio(*rows), trust_ratio(*columns)), trust_ratio(*_largest(x, u, (1, 2))))
    positive = [tf.logical_and(x_most > 0, u_most > 0) for x_most, u_most in (rows, columns)]
    return tf.where(tf.logical_and(*positive), largest, 1.0)


def _largest(x: tf.Tensor, u: tf.Tensor, axes: int | tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """The largest number of x and of u along these axes; the axes stay, with length 1."""
    return tf.reduce_max(x, axes, keepdims=True), tf.reduce_max(u, axes, keepdims=True)


@dataclass(frozen=True)
class Merit(Optimizer):
    """A trust ratio per number, from the largest magnitudes in its row, column and tensor."""

    name: str = named("merit")

    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule("merit", slots, next_moments, directions)
