"""StableAdamW: AdamW whose rate falls, tensor by tensor, where a gradient is larger than its second moment expects.

    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    s = max(1, rms(g / max(sqrt(vh), eps)))                                   rms = ||.|| / sqrt(numbers of g)
    x -= lr / s (mh / (sqrt(vh) + eps) + wd x)

(Wortsman et al. 2023, arXiv 2304.13013, algorithm 2.) A gradient that is sent through a quiet tensor all of a sudden
meets a v that is too small for it; s keeps that update as short as Adafactor's clipping would. ModernBERT was trained
with it, without clipping (`optimizer.max_grad_norm = 0`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, adam_direction, bias_corrected, next_moments
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    direction = adam_direction(slots, settings, t)
    if decay:
        direction += settings.weight_decay * x
    expected = tf.maximum(tf.sqrt(bias_corrected(slots["v"], settings.beta_2, t)), settings.epsilon)
    square = tf.reduce_mean(tf.square(g / expected), range(1, len(g.shape)), keepdims=True)
    return (direction * tf.math.rsqrt(tf.maximum(1.0, square)),)


@dataclass(frozen=True)
class StableAdamW(Optimizer):
    """AdamW with a rate that falls where a gradient is larger than its second moment expects."""

    name: str = named("stable_adamw")

    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule("stable_adamw", slots, next_moments, directions)
