"""SGD without momentum: it has no slots, so it needs no memory beside the parameters.

the caller has clipped g: g / max(1, ||g||_global / max_grad_norm), see `clip_factor`
x -= lr (g + wd x)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `base.Rule`."""
    return {}


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    return (g + settings.weight_decay * x if decay else g,)


@dataclass(frozen=True)
class Sgd(Optimizer):
    """SGD without momentum: no state."""

    name: str = named("sgd")

    rule: ClassVar[Rule] = Rule("sgd", (), next_slots, directions)
