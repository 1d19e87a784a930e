"""Local updates with one slow momentum in quasi-hyperbolic form (MT-DAO, arXiv 2510.05361).

    u_r <- b u_r + (1 - b) n g_r                                    g_r: rank r's share of the gradient, n ranks
    x_r <- x_r - lr (clip(((1 - w) n g_r + w u_r) / (sqrt(v_r) + eps)) + wd x_r)
    v_r <- b2 v_r + (1 - b2) (n g_r)^2                              after x has moved, as in ADOPT
    x_r, u_r, v_r <- their means over ranks, every exchange.interval steps

b is SLOW_BETA, w SLOW_WEIGHT; b2, eps, wd and max_grad_norm (for each rank's own norm) are adamw's,
from [optimizer]. adamw's slots m and v hold u and v. adamw's beta_1 and bias correction are not used: u starts at 0, as
published, so the first 1 / (1 - b) steps are shorter, as in a warm-up.

v follows ADOPT (Taniguchi et al. 2024, arXiv 2411.02853): a gradient is divided by a v that does not contain it yet;
the first gradient only sets v; the quotient is clipped to +-(t - 1)^(1/4). In the published rule step 1 sets v for all
numbers. Here each number whose v is still 0 waits for its own first gradient, because in BERT some numbers have no
gradient for long: positions of a later phase, and rare words if there is no masked-token head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.local.local_sgd import LocalSgdExchange
from bert_horovod.exchange.local.local_step import LocalSettings, local_stage
from bert_horovod.exchange.updater import Updater
from bert_horovod.optimizers.base import Rule, moving_average
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf

# Decay and weight of the slow momentum. The paper uses decays from 0.99 to 0.999 and, for the second moment,
# optimizer.beta_2 = 0.9999, and searches for the weight.
SLOW_BETA, SLOW_WEIGHT = 0.99, 0.9


class MtDaoExchange(LocalSgdExchange):
    """See exchange.local.local_step.LocalExchange."""

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        super().__init__(recipe, world, state, updater, plan)
        updater.rule = slow_momentum_rule(SLOW_BETA, SLOW_WEIGHT)


@functools.cache  # graphs are cached by rule
def slow_momentum_rule(beta: float, weight: float) -> Rule:
    """The rule above, with b and w; see optimizers.base.Rule."""

    def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
        v, square = slots["v"], tf.square(g)
        return {
            "m": moving_average(slots["m"], g, beta),
            "v": tf.where(v > 0, moving_average(v, square, settings.beta_2), square),
        }

    def directions(
        x: tf.Tensor, g: tf.Tensor, old: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
    ) -> tuple[tf.Tensor, ...]:
        momentum = moving_average(old["m"], g, beta)
        direction = ((1.0 - weight) * g + weight * momentum) / (tf.sqrt(old["v"]) + settings.epsilon)
        bound = tf.pow(t - 1.0, 0.25)
        direction = tf.where(old["v"] > 0, tf.clip_by_value(direction, -bound, bound), 0.0)
        return (direction + settings.weight_decay * x if decay else direction,)

    return Rule("mt_dao", ("m", "v"), next_slots, directions, from_old_slots=True)


@dataclass(frozen=True)
class MtDaoSettings(LocalSettings):
    """Averages of parameters, of a slow momentum and of the second moment."""

    method: str = named("mt_dao")
    code: ClassVar[type] = MtDaoExchange

    optimizer: ClassVar[str] = "adamw"
    why_optimizer: ClassVar[str] = (
        "has an update rule of its own, which takes beta_2, epsilon, weight_decay and max_grad_norm of adamw"
    )
    without: ClassVar[tuple[str, ...]] = ("beta_1", "bias_correction")

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [local_stage(after=3 / self.interval)]
