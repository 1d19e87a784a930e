"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101).

    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    x -= lr (mh / (sqrt(vh) + eps) + wd x)

Google's BERT has no bias correction: with `bias_correction = false`, mh = m and vh = v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, adam_direction, next_moments
from bert_horovod.recipe.fields import ReadIf, named, setting
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    if settings.bias_correction:
        direction = adam_direction(slots, settings, t)
    else:
        direction = slots["m"] / (tf.sqrt(slots["v"]) + settings.epsilon)
    return (direction + settings.weight_decay * x if decay else direction,)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    name: str = named("adamw")
    bias_correction: bool = setting(
        True,
        read_if=ReadIf(
            "an exchange without a rule of its own",
            lambda recipe: "bias_correction" not in recipe.exchange.without,
        ),
    )  # Google's BERT does not correct the bias

    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule("adamw", slots, next_moments, directions)
