"""The two stages of 1-bit methods: first dense gradients, then compressed momenta with a frozen v.

    dense        the exchange of gradients with the recipe's optimizer
    at the end   m <- m / (1 - b1^t), v <- v / (1 - b2^t): bias correction; undone before another dense stage
    compressed   m_i = b1 m + (1 - b1) n g_i        on each rank; g_i: its share of the gradient of the global mean
                 m = (m_1 + ... + m_n) / n          by CompressedSums, a bucket as soon as backward has made it
                 x by the method's rule, with m and the frozen v

(Tang et al. 2021, arXiv 2102.02888.) exchange/compressed/stages.py decides when a stage ends.

**Clipping.** In the compressed stage the norm of the mean gradient is unknown, so it cannot be used. Three rules take
its place, so that a gradient that v has never seen does not make a step of any length:

- n g_i is multiplied by f, the root of the mean square of the dense stage's clipping factors, weighted as v weights its
  steps. Often all steps are clipped. Then v is of shortened gradients, and whole ones would make longer steps.
- Each rank clips f n g_i, bucket by bucket, to the norm sqrt(n ||v||_1). ||v||_1 is the mean square norm of the
  bucket's gradient while v was updated; the square norm of one rank's gradient is up to n times as large.
- Each number of it is limited to sqrt(n / (1 - b2)) sqrt(v). While v learns, v >= (1 - b2) g^2 after a gradient g, so
  |g| / sqrt(v) is at most 1 / sqrt(1 - b2). The first gradient of a rare word is thousands of times as large as the
  gradients that the row had before, from the output matrix: v has to grow with it, and a frozen v cannot.

Without the first and the last BERT-mini diverged within four steps of the freeze. With optimizer.max_grad_norm = 0 only
the last is applied.

If a gradient is not finite on one rank, the sum is not finite on all ranks, and all skip the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.compressed.compressed_sums import CompressedSums, moment, payload
from bert_horovod.exchange.compressed.stages import Stages
from bert_horovod.exchange.dense.gradients import GradientExchange
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.exchange.two_step import Errors
from bert_horovod.exchange.updater import Updater
from bert_horovod.optimizers.applying import clip_factor, square_sum
from bert_horovod.optimizers.base import moving_average
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock


class StagedExchange(Exchange):
    """See exchange.base.Exchange; arguments as for GradientExchange. The plan sends no looked-up rows alone."""

    def __init__(
        self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan, held_back: bool = False
    ) -> None:
        super().__init__(recipe, world, state, updater, plan)
        self._settings, self._held_back = recipe.optimizer, held_back
        self._dense = GradientExchange(recipe, world, state, self._dense_updater(), plan, held_back)
        self._sums = CompressedSums(recipe, world, self._shapes, plan, "moments", updater.fused)
        self._stages = Stages(recipe, state.progress)
        # Of a number of n g_i, over the root of its v.
        self._limit = math.sqrt(world.size / (1 - recipe.optimizer.beta_2))
        with tf.device("/CPU:0"):
            self._branch = tf.Variable(0, trainable=False)  # index of the branch that `update` takes in the next step
            self._v_sums = tf.Variable(tf.zeros([len(plan.buckets)]), trainable=False)  # sums of frozen v, by bucket
            # Moving averages of the dense steps' squared clipping factors and of 1; f^2 is their quotient.
            self._factors = tf.Variable([0.0, 0.0], trainable=False)

    def begin(self, first: int, last: int) -> None:
        self._factors.assign(self._state.progress.exchange.get("clipping_factors", [0.0, 0.0]))
        self._dense.begin(first, last)
        frozen_before = self._stages.frozen
        fresh = self._stages.begin(first, last)
        if fresh and frozen_before:
            self._thaw()
        self._sums.begin(self._state, fresh)
        self._take_up_stage(self._state.progress.step + 1)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        return tf.switch_case(
            self._branch.read_value(),
            [partial(branch, gradients, lookups, inputs, clock) for branch in (self._dense_update, *self._branches())],
        )

    def after_step(self, step: int, loss: float) -> str:
        stages = self._stages
        if stages.jumped(loss):
            mean = self._state.progress.mean_loss
            stages.thaw(step)
            self._thaw()
            self._sums.forget()
            self._take_up_stage(step + 1)
            return (
                f"step {step}: the loss is {loss:.4g}, and was {mean:.4g} in the mean of the steps before: "
                f"{stages.memory} steps with dense gradients"
            )
        if stages.looks_at_v(step) and self._state.progress.updates:  # while all steps are skipped there is no v
            v_sum = (
                tf.reduce_sum([tf.reduce_sum(v) for v in self._state.slots["v"].values()]) / self._corrections()["v"]
            )
            # Broadcast, because ranks on different machines may round the sum differently.
            stages.steady(step, float(self._world.broadcast(v_sum, "v_sum")))
        if not stages.freezes_after(step):
            return ""
        stages.freeze()
        self._freeze()
        self._sums.forget()
        self._take_up_stage(step + 1)
        return f"step {step}: the second moment is frozen; from now on compressed momenta are sent"

    def to_progress(self) -> None:
        self._dense.to_progress()
        self._state.progress.exchange["clipping_factors"] = [float(number) for number in self._factors.numpy()]

    def bytes_reduced(self, rows: int = 0) -> float:
        return self._sums.bytes_reduced() if self._stages.frozen else self._dense.bytes_reduced()

    def wire_bytes(self, rows: int = 0) -> float:
        return self._sums.wire_bytes() if self._stages.frozen else self._dense.wire_bytes()

    def _dense_updater(self) -> Updater:
        """The updater of the dense stage."""
        return self._updater

    def _apply(self, momenta: dict[str, tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        """Update from the new m of every parameter, and assign; returns the same as Updater.apply."""
        raise NotImplementedError

    def _branches(self) -> list[Callable[..., Update]]:
        """The branches of `update` beside the dense one, which is branch 0."""
        return [self._compressed_update]

    def _take_up_stage(self, step: int) -> None:
        """Set the variables by which the graph knows the next step's stage."""
        if self._stages.frozen:
            slot = self._state.slots["v"]
            sums = [tf.reduce_sum([tf.reduce_sum(slot[name]) for name in bucket]) for bucket in self.plan.buckets]
            self._v_sums.assign(tf.stack(sums))
        self._choose(int(self._stages.frozen))

    def _choose(self, branch: int) -> None:
        """Set the branch of the next step; branch 0 is the dense one."""
        self._branch.assign(branch)
        self.norm_metric = "exchange_norm" if branch else "gradient_norm"

    def _freeze(self) -> None:
        for slot, correction in self._corrections().items():
            for variable in self._state.slots[slot].values():
                variable.assign(variable / correction)

    def _thaw(self) -> None:
        for slot, correction in self._corrections().items():
            for variable in self._state.slots[slot].values():
                variable.assign(variable * correction)

    def _corrections(self) -> dict[str, float]:
        """Bias corrections of m and v, by which they are divided: 1 - b^t; 1 if AdamW has bias_correction = false."""
        settings, updates = self._settings, self._state.progress.updates
        if not getattr(settings, "bias_correction", True):
            return {"m": 1.0, "v": 1.0}
        return {"m": 1.0 - settings.beta_1**updates, "v": 1.0 - settings.beta_2**updates}

    def _dense_update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        update = self._dense.update(gradients, lookups, inputs, clock)
        squared = tf.square(clip_factor(update.scalars["gradient_norm"], self._settings.max_grad_norm))
        factors = moving_average(self._factors, tf.stack([squared, 1.0]), self._settings.beta_2)
        self._factors.assign(tf.where(update.finite, factors, self._factors))
        return update

    def _compressed_update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        sums, slots, ranks = self._sums, self._state.slots, float(self._world.size)

        def payloads(i: int, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            m, v = (sums.flat(i, slots[slot]) for slot in ("m", "v"))
            factor = ranks * self._clip_factor(square_sum(gradients, self._updater.fused), self._v_sums[i])
            compute = sums.compiled(_payloads)
            return compute(gradients, m, v, factor, self._limit, self._settings.beta_1, ranks, sums.epsilon)

        summed = self._summed(sums, gradients, lookups, payloads, clock)
        momenta = {}
        for i, total in enumerate(summed.totals):
            v = sums.flat(i, slots["v"])
            momenta |= sums.named(i, sums.compiled(moments)(total, sums.sizes[i], v, sums.epsilon))
        return self._applied(sums, summed, momenta, lambda: self._apply(momenta, summed.norm, inputs), clock)

    def _summed(
        self,
        sums: CompressedSums,
        gradients: Gradients,
        lookups: Lookups,
        payloads: Callable[[int, list[tf.Tensor]], list[tf.Tensor]],
        clock: Clock,
    ) -> _Summed:
        """Sum all buckets, each as soon as its gradients exist.

        `payloads` computes the numbers to send from the bucket's number and its flat gradients.
        """
        gradients = whole(gradients, lookups)
        first = list(gradients.values()) if self._held_back else []
        totals, owed, times = [], [], []
        for i in range(len(self.plan.buckets)):
            with tf.control_dependencies(first):
                own_payload = sums.joined(i, payloads(i, sums.flat(i, gradients)))
            ready_s = clock([own_payload])
            total, errors = sums.sum(i, own_payload)
            times.append((ready_s, clock([total])))
            totals.append(total)
            owed.append(errors)
        if self._world.size == 1:
            times = [(tf.zeros([0], tf.float64),) * 2]
            ready_s, done_s = times[0]
        else:
            ready_s, done_s = (tf.stack(kind) for kind in zip(*times, strict=True))
        return _Summed(totals, owed, tf.sqrt(square_sum(totals, self._updater.fused)), ready_s, done_s)

    def _applied(
        self,
        sums: CompressedSums,
        summed: _Summed,
        after: dict[str, tf.Tensor],
        apply: Callable[[], list[tf.Tensor]],
        clock: Clock,
    ) -> Update:
        """Apply the update and assign the errors if the sums are finite.

        `after`: tensors computed from the sums, which the update needs; `apply`: the update.
        """
        # A number of each, because a benchmark's update reads none of them, and TensorFlow fails on a compiled function
        # of which only some results are read.
        reduced_s = clock([tf.concat([tf.reshape(tensor, [-1])[:1] for tensor in after.values()], 0)])

        def assign() -> tf.Tensor:
            sums.assign(summed.owed)
            return clock(apply())

        finite = tf.math.is_finite(summed.norm)
        updated_s = tf.cond(finite, assign, lambda: clock([summed.norm]))
        scalars = {"gradient_norm": summed.norm, "rows": tf.constant(0)}
        return Update(finite, scalars, summed.ready_s, summed.done_s, reduced_s, updated_s)

    def _clip_factor(self, square: tf.Tensor, v_sum: tf.Tensor) -> tf.Tensor:
        """Clipping's factor of this rank's share of a bucket's gradient.

        `square`: the square norm of that share; `v_sum`: the sum of the bucket's v.
        """
        if not self._settings.max_grad_norm:
            return tf.constant(1.0)
        ranks = float(self._world.size)
        norm = ranks * tf.sqrt(square)
        squares, weights = tf.unstack(self._factors.read_value())
        factor = tf.where(weights > 0, tf.sqrt(tf.math.divide_no_nan(squares, weights)), 1.0)
        limit = tf.sqrt(ranks * v_sum)
        # If the norm is infinite, the factor is 0, and infinity * 0 is NaN: so the step is skipped.
        return tf.where(factor * norm > limit, limit / norm, factor)


class _Summed(NamedTuple):
    """The sums of a step's buckets."""

    totals: list[tf.Tensor]  # flat, by bucket
    owed: list[Errors | None]  # new errors, for CompressedSums.assign
    norm: tf.Tensor  # float32 scalar: L2 norm of all totals; not finite on any rank if a gradient of one rank is not
    ready_s: tf.Tensor  # as in Update
    done_s: tf.Tensor


def limited(gradient: tf.Tensor, v: tf.Tensor, limit: float) -> tf.Tensor:
    """A gradient whose numbers are at most `limit` sqrt(v) large; an infinite one becomes NaN, so that it is seen."""
    largest, size = limit * tf.sqrt(v), tf.abs(gradient)
    return tf.where(size > largest, gradient * (largest / size), gradient)


def moments(total: tf.Tensor, sizes: tuple[int, ...], v: list[tf.Tensor], epsilon: float) -> list[tf.Tensor]:
    """The moments of a bucket's tensors, of these sizes, from its sum."""
    return [moment(*each, epsilon) for each in zip(tf.split(total, sizes), v, strict=True)]


def _payloads(
    gradients: list[tf.Tensor],
    m: list[tf.Tensor],
    v: list[tf.Tensor],
    factor: tf.Tensor,
    limit: float,
    beta_1: float,
    ranks: float,
    epsilon: float,
) -> list[tf.Tensor]:
    """What a rank sends of a bucket's tensors: its shares m_i / n of the new moments."""
    payloads = []
    for tensor_m, tensor_v, gradient in zip(m, v, gradients, strict=True):
        share = moving_average(tensor_m, limited(gradient * factor, tensor_v, limit), beta_1) / ranks
        payloads.append(payload(share, tensor_v, epsilon))
    return payloads
