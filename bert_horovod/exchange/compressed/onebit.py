"""1-bit Adam: AdamW that sends the momentum as signs once v is frozen (Tang et al. 2021, arXiv 2102.02888).

    dense        AdamW
    compressed   exchange/compressed/staged.py, then x -= lr (m / (sqrt(v) + eps) + wd x)

The published code has no bias correction: to get the same, set optimizer.bias_correction = false.

1-bit LAMB: LAMB that sends the momentum as signs once v is frozen (Li et al. 2021, arXiv 2104.06069).

    dense        LAMB with its trust ratio r within RATIOS ; c = .9 c + .1 r, a number a tensor
    at the end   c <- c / (1 - .9^t) ; w = v
    compressed   staged.py, then per tensor, with d = sqrt(v) + eps and m's value m' of the step before
        g = (m - b1 m') / (1 - b1) ; w = b2 w + (1 - b2) g^2
        u0 = m / d ; u = u0 + wd x ; f = max over its numbers of d / (sqrt(w) + eps)
        if wd > 0: s = min(1, ||u0|| / ||u||) ; f = f s + (1 - s)
        f = clip(f, .5, 4) ; f = clip(f, .9 f_last, 1.1 f_last) ; f_last = f, from 1 at the freeze
        x -= lr c f u

The published code sends q m, because all tensors of a bucket share one scale; here each tensor has its own.

A case differs from the published code, in which a tensor may stop learning or everything may become NaN: every ratio
enters c, also a ratio of 1, and c is corrected for its start at 0. Tensors without a trust ratio (optimizer.adapt =
"decayed") have c = f = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.compressed.staged import StagedExchange
from bert_horovod.exchange.compressed.stages import OneBitSettings
from bert_horovod.exchange.updater import Updater, Wrapped
from bert_horovod.model.parameters import decays
from bert_horovod.optimizers.applying import square_sums
from bert_horovod.optimizers.base import Rule, moving_average, trust_ratio
from bert_horovod.optimizers.lamb import Lamb
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Optimizer, Recipe
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


RATIOS = 0.01, 10.0  # limits of a tensor's trust ratio; BERT-large was published with at most 0.3 (arXiv 2104.06069)
RATIO_DECAY = 0.9  # of the moving mean of trust ratios
SMALLEST_FACTOR, LARGEST_FACTOR, FACTOR_CHANGE = 0.5, 4.0, 0.1
_NUMBERS = ("mean_ratio", "factor")  # c, f_last: float32 [tensors], in the order of the updater's groups


class OneBitLamb(StagedExchange):
    """See exchange.base.Exchange."""

    def __init__(self, recipe: Recipe, world, state, updater: Updater, plan, held_back: bool = False) -> None:
        self._names = [name for group in updater.groups for name in group]
        count = len(self._names)
        self._numbers = {
            "mean_ratio": tf.Variable(tf.zeros([count]), trainable=False),
            "factor": tf.Variable(tf.ones([count]), trainable=False),
        }
        super().__init__(recipe, world, state, updater, plan, held_back)

    def begin(self, first: int, last: int) -> None:
        for name in _NUMBERS:
            if name in self._state.progress.exchange:
                self._numbers[name].assign(self._state.progress.exchange[name])
        super().begin(first, last)

    def to_progress(self) -> None:
        super().to_progress()
        for name in _NUMBERS:
            self._state.progress.exchange[name] = [float(number) for number in self._numbers[name].numpy()]

    def _dense_updater(self) -> Updater:
        return _Recording(self._updater, self._numbers["mean_ratio"])

    def _freeze(self) -> None:
        super()._freeze()
        slots, numbers = self._state.slots, self._numbers
        for name, v in slots["v"].items():
            slots["v_fresh"][name].assign(v)
        numbers["mean_ratio"].assign(numbers["mean_ratio"] / self._ratio_correction())
        numbers["factor"].assign(tf.ones_like(numbers["factor"]))

    def _thaw(self) -> None:
        super()._thaw()
        self._numbers["mean_ratio"].assign(self._numbers["mean_ratio"] * self._ratio_correction())

    def _ratio_correction(self) -> float:
        return 1.0 - RATIO_DECAY**self._state.progress.updates

    def _apply(self, momenta: dict[str, tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        updater, settings = self._updater, self._settings
        mean_ratios = _by_group(self._numbers["mean_ratio"].read_value(), updater.groups)
        last_factors = _by_group(self._numbers["factor"].read_value(), updater.groups)
        factors = []
        for group, last in zip(updater.groups, last_factors, strict=True):
            slots = {slot: tf.stack([self._state.slots[slot][name] for name in group]) for slot in _SLOTS}
            x = tf.stack([updater.parameters[name] for name in group])
            decay = decays(group[0])
            m = tf.stack([momenta[name] for name in group])
            fresh = self._sums.compiled(_fresh_ratios)(x, m, slots, decay, settings)
            factor = tf.reduce_max(tf.reshape(fresh[0], [len(group), -1]), 1)
            if decay and settings.weight_decay > 0:
                squares = (square_sums(update, updater.fused) for update in fresh[1:])
                share = tf.minimum(1.0, tf.sqrt(tf.math.divide_no_nan(*squares)))
                factor = factor * share + (1 - share)
            factor = tf.clip_by_value(factor, SMALLEST_FACTOR, LARGEST_FACTOR)
            factors.append(tf.clip_by_value(factor, last * (1 - FACTOR_CHANGE), last * (1 + FACTOR_CHANGE)))
        rates_of_groups = iter([ratio * factor for ratio, factor in zip(mean_ratios, factors, strict=True)])

        def rates(learning_rate, norms, decay: bool, settings: Optimizer) -> tuple[tf.Tensor, ...]:
            rate = next(rates_of_groups)
            return (learning_rate * (rate if _has_ratio(decay, settings) else tf.ones_like(rate)),)

        rule = Rule("frozen_lamb", _SLOTS, _next_slots, directions, rates, adaptive=True, clips=False)
        self._numbers["factor"].assign(tf.concat(factors, 0))
        return updater.apply(updater.grouped(momenta), norm, inputs, rule)


_SLOTS = ("m", "v", "v_fresh")


class _Recording(Wrapped):
    """An Updater that limits the trust ratios, and records their moving mean in `mean_ratio`, float32 [tensors]."""

    def __init__(self, updater: Updater, mean_ratio: tf.Variable) -> None:
        super().__init__(updater)
        self._mean_ratio = mean_ratio

    def apply(self, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        """See Updater."""
        ratios = []

        def rates(learning_rate, norms, decay: bool, settings: Optimizer) -> tuple[tf.Tensor, ...]:
            ratio = tf.clip_by_value(trust_ratio(*norms), *RATIOS)
            ratios.append(ratio if _has_ratio(decay, settings) else tf.ones_like(ratio))
            return (learning_rate * ratios[-1],)

        rule = Rule("limited_lamb", ("m", "v"), Lamb.rule.next_slots, Lamb.rule.directions, rates, adaptive=True)
        done = self._updater.apply(grouped, norm, inputs, rule)
        if ratios:  # empty if a benchmark's updater sleeps instead of updating
            self._mean_ratio.assign(moving_average(self._mean_ratio.read_value(), tf.concat(ratios, 0), RATIO_DECAY))
        return done


def _has_ratio(decay: bool, settings: Optimizer) -> bool:
    return decay or settings.adapt == "all"


def _by_group(numbers: tf.Tensor, groups: list[list[str]]) -> list[tf.Tensor]:
    return tf.split(numbers, [len(group) for group in groups])


def _next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `optimizers.base.Rule`; g is the new m."""
    gradient = (g - settings.beta_1 * slots["m"]) / (1.0 - settings.beta_1)
    v_fresh = moving_average(slots["v_fresh"], tf.square(gradient), settings.beta_2)
    return {"m": g, "v_fresh": v_fresh}


def _fresh_ratios(
    x: tf.Tensor, m: tf.Tensor, slots: dict[str, tf.Tensor], decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """d / (sqrt(w) + eps), u0 and u of n tensors, float32 [n, ...] each."""
    slots = slots | _next_slots(m, slots, settings)
    ratios = (tf.sqrt(slots["v"]) + settings.epsilon) / (tf.sqrt(slots["v_fresh"]) + settings.epsilon)
    return ratios, *(directions(x, m, slots, None, each, settings)[0] for each in (False, decay))


@dataclass(frozen=True)
class OneBitLambSettings(OneBitSettings):
    """Signs of LAMB's momentum, once its second moment is frozen."""

    method: str = named("onebit_lamb")
    code: ClassVar[type] = OneBitLamb

    optimizer: ClassVar[str] = "lamb"
    slots: ClassVar[tuple[str, ...]] = ("v_fresh",)
