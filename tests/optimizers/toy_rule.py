"""An update rule that is one file: the sign of a momentum. Test_slots.py adds its one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, moving_average
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `optimizers.base.Rule`."""
    return {"m": moving_average(slots["m"], g, settings.beta_1)}


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: SignMomentum
) -> tuple[tf.Tensor, ...]:
    """See `optimizers.base.Rule`."""
    return (settings.length * tf.sign(slots["m"]),)


@dataclass(frozen=True)
class SignMomentum(Optimizer):
    """The sign of a momentum."""

    name: str = named("sign_momentum")
    length: float = setting(1.0, above=0)  # multiplies the learning rate

    slots: ClassVar[tuple[str, ...]] = ("m",)
    rule: ClassVar[Rule] = Rule("sign_momentum", slots, next_slots, directions)
