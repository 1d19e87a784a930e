"""LANS: LAMB with normalised gradients and Nesterov's momentum (Zheng et al. 2020, arXiv 2006.13484).

    g~ = g / (||g|| + eps), or g where the norm is 0
    m = b1 m + (1 - b1) g~ ;  v = b2 v + (1 - b2) g~^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    den = sqrt(vh) + eps ;  r = mh / den + wd x ;  c = g~ / den + wd x
    x -= lr (b1 ||x|| / ||r|| r + (1 - b1) ||x|| / ||c|| c)       a ratio is 1 where either norm is 0

Both decay terms use the old x. The gradients need no clipping, because their scale cancels in g~, if the norm is well
above epsilon and its square is within float32's range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.optimizers.base import Rule, bias_corrected, next_moments, trust_ratio
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer, Recipe
from bert_horovod.runtime import lazy_tensorflow as tf


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`; the two directions are r, from the momentum, and c, from the gradient."""
    denominator = tf.sqrt(bias_corrected(slots["v"], settings.beta_2, t)) + settings.epsilon
    update_directions = (bias_corrected(slots["m"], settings.beta_1, t) / denominator, g / denominator)
    return (
        tuple(direction + settings.weight_decay * x for direction in update_directions) if decay else update_directions
    )


def rates(
    learning_rate: tf.Tensor, norms: tuple[tf.Tensor, ...], decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    x_norm, momentum_norm, gradient_norm = norms
    return (
        learning_rate * settings.beta_1 * trust_ratio(x_norm, momentum_norm),
        learning_rate * (1.0 - settings.beta_1) * trust_ratio(x_norm, gradient_norm),
    )


@dataclass(frozen=True)
class Lans(Optimizer):
    """LAMB with normalised gradients and Nesterov's momentum."""

    name: str = named("lans")

    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    rule: ClassVar[Rule] = Rule(
        "lans", slots, next_moments, directions, rates, adaptive=True, normalized=True, clips=False
    )

    def check(self, recipe: Recipe) -> None:
        if self.clipping == "bucket":
            raise UserError(
                "optimizer.clipping = 'bucket': optimizer.name = 'lans' divides each tensor's gradient by its norm and "
                "clips none; expected 'global', which is the default and does nothing here"
            )
