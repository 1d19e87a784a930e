"""0/1 Adam: v is updated by fewer and fewer dense gradients, then frozen; after that ranks step alone, sync by signs.

(Lu et al. 2022, arXiv 2202.06009.) k numbers the steps of a stage in which v learns; k = 1 is its first step after the
warm-up. n ranks; d = sqrt(v) + eps; u counts the updates of v.

    v learns     k < 1 or k % I == 0: g = sum of shares, dense ; v = b2 v + (1 - b2) g^2
                 I starts at 1 and doubles after every variance_updates of these steps
                 else: g = sum of shares by CompressedSums
                 m = b1 m + (1 - b1) g ; x -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^u)) + eps) + wd x)
    v is frozen  bias correction of m and v, as in exchange/compressed/staged.py ; y = x, a = 0, L = 0
                 on each rank: m = b1 m + (1 - b1) n g_i ; L += lr ; a -= lr m / d ; x = (1 - L wd) y + a
                 step % P == 0, a sync: a = mean of a by CompressedSums ; m = -a d / L ; y = (1 - L wd) y + a ; x = y
                 a = 0, L = 0

P is the largest power of two <= exchange.interval and <= peak / lr. I and P depend only on the step, so a resumed run
continues in the same way. Between syncs ranks differ, so recipe/checking.py allows comparisons, evaluations
and checkpoints only at multiples of the interval. The payload is of g and of a d: see compressed_sums.py.

In the publication k counts from the stage's first step. A short run does not learn with that: while the loss first
falls, gradients are large and similar; signs cannot carry them, and the rest accumulates as errors. These errors still
push in the old direction after the gradients have turned.

Four properties of the published code are not copied. It counts the decay as part of a, and so of m, which makes the
decay 1 / (1 - b1) times as strong. It undoes local steps by subtraction, so that replicas drift apart. It has no bias
correction, so that v, which is updated rarely, is far too small. Its checkpoints lose its counters. Gradients are
clipped and limited as in staged.py.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.compressed.compressed_sums import CompressedSums, payload
from bert_horovod.exchange.compressed.staged import StagedExchange, limited, moments
from bert_horovod.exchange.compressed.stages import SIGNS, StagedSettings, phase_of
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.exchange.updater import Updater, Wrapped
from bert_horovod.model.parameters import decays
from bert_horovod.optimizers.applying import square_sum
from bert_horovod.optimizers.base import Rule, bias_corrected, moving_average, next_moments
from bert_horovod.optimizers.schedule import learning_rate, steps_without_rate, whole_steps
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Optimizer, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock

_DENSE, _SIGNS, _LOCAL = range(3)  # branches of update


class ZeroOneAdam(StagedExchange):
    """See exchange.base.Exchange."""

    def __init__(self, recipe: Recipe, world, state, updater: Updater, plan, held_back: bool = False) -> None:
        self._v_updates = tf.Variable(0.0, trainable=False)  # u
        super().__init__(recipe, world, state, updater, plan, held_back)
        self._gradient_sums = CompressedSums(recipe, world, self._shapes, plan, "gradients.signs", updater.fused)
        self._common: dict[str, tf.Variable] = {}  # y
        self._moved: dict[str, tf.Variable] = {}  # a
        self._length = tf.Variable(0.0, trainable=False)  # L
        self._worst_loss = float("-inf")  # since the last sync
        self._sync = tf.function(self._synchronise, autograph=False)

    def begin(self, first: int, last: int) -> None:
        self._v_updates.assign(self._state.progress.exchange.get("v_updates", 0.0))
        self._phase, self._first = phase_of(self._recipe, first), first
        for name, parameter in self._updater.parameters.items():  # equal on all ranks now, so y = x, a = 0
            self._common[name] = tf.Variable(parameter, trainable=False)
            self._moved[name] = tf.Variable(tf.zeros_like(parameter), trainable=False)
        super().begin(first, last)
        self._gradient_sums.begin(self._state, fresh=False)

    def after_step(self, step: int, loss: float) -> str:
        self._worst_loss = max(self._worst_loss, loss)
        self._next = min(step + 1, self._first + self._phase.steps - 1)  # not beyond the phase's last step
        if not self.ranks_equal_after(step):
            return ""
        if self._stages.frozen and float(self._length):  # L = 0: all steps since the last sync were skipped
            self._sync()
        worst, self._worst_loss = self._worst_loss, float("-inf")
        report = super().after_step(step, worst)
        if not self._stages.frozen:
            self._take_up_stage(step + 1)
        return report

    def ranks_equal_after(self, step: int) -> bool:
        return not self._stages.frozen or step % self._period(step) == 0

    def to_progress(self) -> None:
        super().to_progress()
        self._state.progress.exchange["v_updates"] = float(self._v_updates)

    def bytes_reduced(self, rows: int = 0) -> float:
        return self._of_branch(self._dense.bytes_reduced(), self._sums.bytes_reduced())

    def wire_bytes(self, rows: int = 0) -> float:
        return self._of_branch(self._dense.wire_bytes(), self._sums.wire_bytes())

    def _of_branch(self, dense: float, signs: float) -> float:
        branch = int(self._branch)
        return dense if branch == _DENSE else signs if branch == _SIGNS else signs / self._period(self._next)

    def _period(self, step: int) -> int:
        """P of this step: steps from one sync to the next."""
        return sync_period(self._phase, step - self._first + 1, self._recipe.exchange.interval)

    def _learns(self, step: int) -> bool:
        """Whether v is updated in this step; called only in a stage in which v learns."""
        k, interval = step - max(self._stages.first - 1, self._stages.warm), 1
        updates = self._recipe.exchange.variance_updates
        while k > interval * updates:
            k -= interval * updates
            interval *= 2
        return k <= 0 or k % interval == 0

    def _take_up_stage(self, step: int) -> None:
        super()._take_up_stage(step)
        self._next = step
        if self._stages.frozen:
            self._choose(_LOCAL)
        else:
            self._choose(_DENSE if self._learns(step) else _SIGNS)

    def _freeze(self) -> None:
        super()._freeze()
        for name, parameter in self._updater.parameters.items():
            self._common[name].assign(parameter)

    def _corrections(self) -> dict[str, float]:
        settings = self._settings
        return {
            "m": 1.0 - settings.beta_1**self._state.progress.updates,
            "v": 1.0 - settings.beta_2 ** float(self._v_updates),
        }

    def _dense_updater(self) -> Updater:
        return _Learning(self._updater, self._v_updates)

    def _branches(self) -> list:
        return [self._signs_update, self._local_update]

    def _signs_update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        """A step between two updates of v, in the stage in which v learns: its gradient is sent as signs."""
        sums, v_updates = self._gradient_sums, self._v_updates.read_value()
        v = [sums.flat(i, self._state.slots["v"]) for i in range(len(self.plan.buckets))]

        def payloads(i: int, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            v_sum = tf.reduce_sum(tf.stack([tf.reduce_sum(tensor_v) for tensor_v in v[i]]))
            v_sum = bias_corrected(v_sum, self._settings.beta_2, v_updates)
            factor = self._clip_factor(square_sum(gradients, self._updater.fused), v_sum)
            limit = self._limit / self._world.size
            compute = sums.compiled(_gradient_payloads)
            return compute(gradients, v[i], factor, limit, v_updates, self._settings.beta_2, sums.epsilon)

        summed = self._summed(sums, gradients, lookups, payloads, clock)
        mean = {}
        for i, total in enumerate(summed.totals):
            mean |= sums.named(i, sums.compiled(moments)(total, sums.sizes[i], v[i], sums.epsilon))

        def apply() -> list[tf.Tensor]:
            grouped = self._updater.grouped(mean)
            return self._updater.apply(grouped, summed.norm, _with_updates(inputs, v_updates), _SIGNS_RULE)

        return self._applied(sums, summed, mean, apply, clock)

    def _local_update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        """A step of this rank alone, from its own gradient."""
        gradients, settings, ranks = whole(gradients, lookups), self._settings, float(self._world.size)
        flat = [self._sums.flat(i, gradients) for i in range(len(self.plan.buckets))]
        squares = [square_sum(bucket, self._updater.fused) for bucket in flat]
        # If one rank's gradient is not finite, all ranks skip the update: else one would have made an update less.
        norm = self._world.all_reduce(tf.sqrt(tf.reduce_sum(tf.stack(squares)))[None], "norms")[0]
        finite = tf.math.is_finite(norm)
        reduced_s = clock([norm])

        def apply() -> tf.Tensor:
            length = self._length.assign_add(inputs.learning_rate)
            slots, x = self._state.slots, {}
            for i, bucket in enumerate(flat):
                factor = ranks * self._clip_factor(squares[i], self._v_sums[i])
                for name, gradient in self._sums.named(i, bucket).items():
                    old = (slots["m"][name], slots["v"][name], self._common[name], self._moved[name])
                    m, moved, x[name] = self._sums.compiled(_local_step)(
                        *(variable.read_value() for variable in old),
                        gradient,
                        factor,
                        self._limit,
                        inputs.learning_rate,
                        self._kept(name, length),
                        settings,
                    )
                    slots["m"][name].assign(m)
                    self._moved[name].assign(moved)
            return clock(self._assign(x))

        updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        none = tf.zeros([0 if self._world.size == 1 else len(flat)], tf.float64)
        scalars = {"gradient_norm": norm, "rows": tf.constant(0)}
        return Update(finite, scalars, none, none, reduced_s, updated_s)

    def _synchronise(self) -> None:
        """The sync, which makes all ranks equal; a collective: all ranks must call it."""
        slots, length = self._state.slots, self._length.read_value()
        owed, y = [], {}
        for i in range(len(self.plan.buckets)):
            moved, v = (self._sums.flat(i, tensors) for tensors in (self._moved, slots["v"]))
            ranks, epsilon = float(self._world.size), self._sums.epsilon
            payloads = self._sums.compiled(_movement_payloads)(moved, v, ranks, epsilon)
            total, errors = self._sums.sum(i, self._sums.joined(i, payloads))
            owed.append(errors)
            mean = self._sums.compiled(moments)(total, self._sums.sizes[i], v, epsilon)
            for name, moment in self._sums.named(i, mean).items():
                slots["m"][name].assign(-moment / length)
                moved = moment / (tf.sqrt(slots["v"][name]) + epsilon)
                y[name] = self._common[name] * self._kept(name, length) + moved
        for name, array in y.items():
            self._common[name].assign(array)
            self._moved[name].assign(tf.zeros_like(array))
        self._sums.assign(owed)
        self._length.assign(0.0)
        self._assign(y)

    def _kept(self, name: str, length: tf.Tensor) -> tf.Tensor:
        """1 - L wd: weight decay's factor of a parameter over steps whose learning rates sum to `length`."""
        return 1.0 - length * self._settings.weight_decay if decays(name) else tf.constant(1.0)

    def _assign(self, x: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        parameters = self._updater.parameters
        for name, array in x.items():
            parameters[name].assign(array)
        return self._updater.cast.refresh({name: x[name] for name in parameters}, narrow=None)


class _Learning(Wrapped):
    """An Updater of the steps in which v is updated; it counts them in `v_updates`."""

    def __init__(self, updater: Updater, v_updates: tf.Variable) -> None:
        super().__init__(updater)
        self._v_updates = v_updates

    def apply(self, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        """See Updater."""
        v_updates = self._v_updates.assign_add(1.0)
        return self._updater.apply(grouped, norm, _with_updates(inputs, v_updates), _LEARNING_RULE)


def _with_updates(inputs: UpdateInputs, v_updates: tf.Tensor) -> UpdateInputs:
    """The inputs with `update` as [updates of m, updates of v], for `_directions`."""
    return UpdateInputs(inputs.learning_rate, tf.stack([inputs.update, v_updates]))


def _gradient_payloads(
    gradients: list[tf.Tensor],
    v: list[tf.Tensor],
    factor: tf.Tensor,
    limit: float,
    v_updates: tf.Tensor,
    beta_2: float,
    epsilon: float,
) -> list[tf.Tensor]:
    """What a rank sends of its gradient of a bucket's tensors while v learns; `factor`: clipping's."""
    payloads = []
    for gradient, tensor_v in zip(gradients, v, strict=True):
        corrected = bias_corrected(tensor_v, beta_2, v_updates)
        payloads.append(payload(limited(gradient * factor, corrected, limit), tensor_v, epsilon))
    return payloads


def _movement_payloads(moved: list[tf.Tensor], v: list[tf.Tensor], ranks: float, epsilon: float) -> list[tf.Tensor]:
    """What a rank sends of a, its own movement since the last sync: a d, as a moment."""
    return [payload(a * (tf.sqrt(each) + epsilon) / ranks, each, epsilon) for a, each in zip(moved, v, strict=True)]


def _local_step(
    m: tf.Tensor,
    v: tf.Tensor,
    common: tf.Tensor,
    moved: tf.Tensor,
    gradient: tf.Tensor,
    factor: tf.Tensor,
    limit: float,
    rate: tf.Tensor,
    kept: tf.Tensor,
    settings: Optimizer,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The new m, a and x of a parameter, float32 of its shape each; `factor`: clipping's; `limit`: see `limited`."""
    m = tf.where(v > 0, moving_average(m, limited(gradient * factor, v, limit), settings.beta_1), 0.0)
    moved -= rate * m / (tf.sqrt(v) + settings.epsilon)
    return m, moved, kept * common + moved


def _next_first_moment(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `optimizers.base.Rule`."""
    return {"m": moving_average(slots["m"], g, settings.beta_1)}


def _directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `optimizers.base.Rule`; t: float32 [2], the numbers of m's updates and of v's."""
    v = bias_corrected(slots["v"], settings.beta_2, t[1])
    direction = bias_corrected(slots["m"], settings.beta_1, t[0]) / (tf.sqrt(v) + settings.epsilon)
    return (direction + settings.weight_decay * x if decay else direction,)


_LEARNING_RULE = Rule("learning_adamw", ("m", "v"), next_moments, _directions)
_SIGNS_RULE = Rule("resting_adamw", ("m", "v"), _next_first_moment, _directions, clips=False)


@dataclass(frozen=True)
class ZeroOneAdamSettings(StagedSettings):
    """Signs of the sum of a rank's own AdamW steps, at syncs that become rarer as the learning rate falls."""

    method: str = named("zero_one_adam")
    code: ClassVar[type] = ZeroOneAdam
    variance_updates: int = setting(16, minimum=1)  # updates of v after which their interval doubles
    # Largest number of steps between two syncs, a power of two; the published recipe has 16
    interval: int = setting(1, minimum=1)

    optimizer: ClassVar[str] = "adamw"
    without: ClassVar[tuple[str, ...]] = ("bias_correction",)  # see check
    intervals: ClassVar[tuple[str, ...]] = ("interval",)

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        steps, learning = phase.steps, self.learning_steps(phase)
        warm = whole_steps(steps, phase.warmup)
        updates = warm + count_updates(learning - warm, self.variance_updates)
        local = steps - learning
        syncs = count_syncs(phase, learning + 1, self.interval)
        return [
            Stage("dense", updates / steps, recipe.numerics.wire, reduction),
            Stage("compressed", (learning - updates) / steps, *SIGNS),
            Stage("local", local / steps, *SIGNS, during_backward=False, after=syncs / max(1, local)),
        ]

    @property
    def agreement(self) -> int:
        return self.interval

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return super().kept_numbers(recipe, shapes) + 2 * sum(map(math.prod, shapes.values()))

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if not recipe.optimizer.bias_correction:
            raise UserError(
                "optimizer.bias_correction = false: exchange.method = 'zero_one_adam' updates the second moment "
                "rarely, so that without correction it would be far too small; expected true"
            )
        for i, phase in enumerate(recipe.phase):
            if count := steps_without_rate(phase):
                raise UserError(
                    f"phase.{i}: its last {count:,} steps have the learning rate 0, by which exchange.method = "
                    "'zero_one_adam' divides; expected a smaller decay_power, or an end_learning_rate"
                )
        if self.interval & (self.interval - 1):
            raise UserError(
                f"exchange.interval = {self.interval}: exchange.method = 'zero_one_adam' doubles its interval up to "
                "this one; expected a power of two"
            )


def sync_period(phase: Phase, step: int, most: int) -> int:
    """Steps from one sync of 0/1 Adam to the next: the largest power of two <= `most` and <= peak / learning rate.

    The other arguments are those of learning_rate.

    >>> phase = Phase(steps=100, learning_rate=1.0, warmup=0.0)
    >>> [sync_period(phase, step, most=16) for step in (1, 51, 52, 76, 100)]
    [1, 2, 2, 4, 16]
    """
    rate = learning_rate(phase, step)
    period = 1
    while 2 * period <= min(most, phase.learning_rate / rate):
        period *= 2
    return period


def count_updates(steps: int, updates: int) -> int:
    """How many of the first `steps` steps update 0/1 Adam's v: `updates` times each step, then every second, ..."""
    done, interval = 0, 1
    while steps > interval * updates:
        done, steps, interval = done + updates, steps - interval * updates, 2 * interval
    return done + steps // interval


def count_syncs(phase: Phase, first: int, most: int) -> float:
    """Number of 0/1 Adam's syncs from step `first` of the phase to its end; the learning rate must not rise there."""
    syncs, step = 0.0, first
    while step <= phase.steps:
        period = sync_period(phase, step, most)
        # The first step with a longer period.
        end = bisect.bisect_right(
            range(phase.steps + 1), period, lo=step, key=lambda later_step: sync_period(phase, later_step, most)
        )
        syncs, step = syncs + (end - step) / period, end
    return syncs
