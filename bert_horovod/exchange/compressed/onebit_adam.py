"""1-bit Adam: AdamW that sends the momentum as signs once v is frozen (Tang et al. 2021, arXiv 2102.02888).

    dense        AdamW
    compressed   exchange/compressed/staged.py, then x -= lr (m / (sqrt(v) + eps) + wd x)

The published code has no bias correction: to get the same, set optimizer.bias_correction = false. Its one scale a
bucket is exchange.form = published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.compressed.staged import StagedExchange
from bert_horovod.exchange.compressed.stages import OneBitSettings
from bert_horovod.optimizers.base import Rule
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


class OneBitAdam(StagedExchange):
    """See exchange.base.Exchange."""

    def _apply(self, momenta: dict[str, tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        return self._updater.apply(self._updater.grouped(momenta), norm, inputs, FROZEN_ADAMW)


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `optimizers.base.Rule`; g is the new m."""
    return {"m": g}


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `optimizers.base.Rule`; m and v are bias-corrected already, since the step in which v was frozen."""
    direction = slots["m"] / (tf.sqrt(slots["v"]) + settings.epsilon)
    return (direction + settings.weight_decay * x if decay else direction,)


FROZEN_ADAMW = Rule("frozen_adamw", ("m", "v"), next_slots, directions, clips=False)


@dataclass(frozen=True)
class OneBitAdamSettings(OneBitSettings):
    """Signs of AdamW's momentum, once its second moment is frozen."""

    method: str = named("onebit_adam")
    code: ClassVar[type] = OneBitAdam

    optimizer: ClassVar[str] = "adamw"
