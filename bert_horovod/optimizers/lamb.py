"""LAMB: Adam's direction with a trust ratio per tensor (You et al. 2020, arXiv 1904.00962).

    the caller has clipped g: g / max(1, ||g||_global / max_grad_norm), see `clip_factor`
    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    u = mh / (sqrt(vh) + eps) + wd x ;  ratio = ||x|| / ||u||, or 1 where either norm is 0
    x -= lr ratio u

With `adapt = "decayed"` tensors without weight decay have ratio 1, as in older TensorFlow code; with "all" every tensor
has its own ratio, as in NVIDIA's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, adam_direction, next_moments, trust_ratio
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    direction = adam_direction(slots, settings, t)
    return (direction + settings.weight_decay * x if decay else direction,)


def rates(
    learning_rate: tf.Tensor, norms: tuple[tf.Tensor, ...], decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    return (learning_rate * trust_ratio(*norms) if decay or settings.adapt == "all" else learning_rate,)


@dataclass(frozen=True)
class Lamb(Optimizer):
    """Adam's direction with a trust ratio per tensor."""

    name: str = named("lamb")
    # Tensors that get a trust ratio. all: every tensor; decayed: those with weight decay
    adapt: str = setting("all", choices=("all", "decayed"))

    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule("lamb", slots, next_moments, directions, rates, adaptive=True)
