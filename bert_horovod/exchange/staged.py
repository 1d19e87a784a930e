"""What 1-bit Adam and 1-bit LAMB share: dense gradients at first, then compressed momenta with a frozen v.

    dense        the exchange of gradients with the recipe's optimizer
    at the end   v <- v / (1 - b2^t): frozen v is corrected for its bias; back to the dense stage: v <- v (1 - b2^t)
    compressed   m_i = b1 m + (1 - b1) n g_i        on each rank; g_i: its share of the gradient of the global mean
                 m = (m_1 + ... + m_n) / n          by CompressedSums, a bucket as soon as backward has made it
                 x by the method's rule, with m and the frozen v

(Tang et al. 2021, arXiv 2102.02888.) exchange/stages.py says when a stage ends. The norm of the mean gradient is
unknown in the compressed stage, so that gradients cannot be clipped by it: there each rank clips n g_i, bucket by
bucket, at CLIPPED sqrt(n ||v||_1). ||v||_1 is the mean square of the bucket's gradient while v learned, and a rank's
own is up to n times as large: only what is far out is clipped. With optimizer.max_grad_norm = 0 nothing is.

A step that is not finite on one rank reaches all ranks, as a sum that is not finite, and changes nothing on any.
"""

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Update, UpdateInputs
from bert_horovod.exchange.compressed_sums import CompressedSums
from bert_horovod.exchange.gradients import GradientExchange
from bert_horovod.exchange.reducer import with_rows
from bert_horovod.exchange.stages import Stages
from bert_horovod.exchange.updater import Updater
from bert_horovod.optimizers.applying import square_sums
from bert_horovod.optimizers.moments import moving_average
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.clock import Clock

CLIPPED = 3.0  # times the usual norm of a rank's gradient of a bucket, in the compressed stage


class StagedExchange:
    """See exchange.base.Exchange; the arguments are those of GradientExchange. The plan's rows go with the rest."""

    overlaps = True

    def __init__(
        self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan, held_back: bool = False
    ) -> None:
        shapes = {name: tuple(variable.shape) for name, variable in updater.parameters.items()}
        self.plan = BucketPlan(plan.buckets)
        self._settings, self._world, self._state, self._updater = recipe.optimizer, world, state, updater
        self._held_back = held_back
        self._dense = GradientExchange(recipe, world, state, self._dense_updater(), self.plan, held_back)
        self._sums = CompressedSums(recipe, world, shapes, self.plan, "moments", updater.fused)
        self._stages = Stages(recipe, state.progress)
        with tf.device("/CPU:0"):
            self._compressed = tf.Variable(False, trainable=False)
            self._limits = tf.Variable(tf.zeros([len(plan.buckets)]), trainable=False)  # of the norms of n g_i

    def begin(self, first: int, last: int) -> None:
        self._dense.begin(first, last)
        frozen_before = self._stages.frozen
        fresh = self._stages.begin(first, last)
        if fresh and frozen_before:
            self._thaw()
        self._sums.begin(self._state, fresh)
        self._take_up_stage()

    def update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        return tf.cond(
            self._compressed,
            lambda: self._compressed_update(gradients, lookups, inputs, clock),
            lambda: self._dense.update(gradients, lookups, inputs, clock),
        )

    def after_step(self, step: int, loss: float) -> str:
        stages = self._stages
        if stages.jumped(loss):
            mean = self._state.progress.mean_loss
            stages.thaw(step)
            self._thaw()
            self._take_up_stage()
            return (
                f"step {step}: the loss is {loss:.4g}, and was {mean:.4g} in the mean of the steps before: "
                f"{stages.memory} steps with dense gradients"
            )
        if stages.looks_at_v(step):
            v_sum = tf.add_n([tf.reduce_sum(v) for v in self._state.slots["v"].values()]) / self._correction()
            # Ranks of different machines may round it differently.
            stages.steady(step, float(self._world.broadcast(v_sum, "v_sum")))
        if not stages.freezes_after(step):
            return ""
        stages.freeze()
        self._freeze()
        self._sums.forget()
        self._take_up_stage()
        return f"step {step}: the second moment is frozen; from now on compressed momenta are sent"

    def agrees_after(self, step: int) -> bool:
        return True

    def remember(self) -> None:
        self._dense.remember()

    def bytes_reduced(self, rows: int = 0) -> float:
        return self._sums.bytes_reduced() if self._stages.frozen else self._dense.bytes_reduced()

    def wire_bytes(self, rows: int = 0) -> float:
        return self._sums.wire_bytes() if self._stages.frozen else self._dense.wire_bytes()

    def _dense_updater(self) -> Updater:
        """What updates in the dense stage."""
        return self._updater

    def _apply(self, momenta: dict[str, tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs) -> list[tf.Tensor]:
        """Update with the new m of every parameter, and assign; returns what Updater.apply does."""
        raise NotImplementedError

    def _freeze(self) -> None:
        for v in self._state.slots["v"].values():
            v.assign(v / self._correction())

    def _thaw(self) -> None:
        for v in self._state.slots["v"].values():
            v.assign(v * self._correction())

    def _correction(self) -> float:
        """1 - b2^t, by which v falls short of a mean; 1 where the recipe wants no correction."""
        settings = self._settings
        return 1.0 - settings.beta_2**self._state.progress.updates if settings.bias_correction else 1.0

    def _take_up_stage(self) -> None:
        """Let the graph do what the stage is."""
        if self._stages.frozen:
            slot = self._state.slots["v"]
            sums = [tf.add_n([tf.reduce_sum(slot[name]) for name in bucket]) for bucket in self.plan.buckets]
            self._limits.assign(CLIPPED * tf.sqrt(self._world.size * tf.stack(sums)))
        self._compressed.assign(self._stages.frozen)

    def _compressed_update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        gradients = {
            name: with_rows(gradient, lookups[name]) if name in lookups else gradient
            for name, gradient in gradients.items()
        }
        slots = self._state.slots
        first = list(gradients.values()) if self._held_back else []
        momenta, errors, squares, times = {}, [], [], []
        for i in range(len(self.plan.buckets)):
            with tf.control_dependencies(first):
                gradient = self._sums.flat(i, gradients)
            m, v = (self._sums.flat(i, slots[slot]) for slot in ("m", "v"))
            payload = self._sums.to_payload(self._share(i, gradient, m), v)
            ready_s = clock([payload])
            payload, owed = self._sums.sum(i, payload)
            times.append((ready_s, clock([payload])))
            squares.append(tf.reduce_sum(square_sums(payload[None], self._updater.fused)))
            momenta |= self._sums.named(i, self._sums.from_payload(payload, v))
            errors.append(owed)
        reduced_s = clock(list(momenta.values()))
        norm = tf.sqrt(tf.add_n(squares))

        def apply() -> tf.Tensor:
            self._sums.assign(errors)
            return clock(self._apply(momenta, norm, inputs))

        finite = tf.math.is_finite(norm)
        updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        if self._world.size == 1:
            times = [(tf.zeros([0], tf.float64),) * 2]
            ready_s, done_s = times[0]
        else:
            ready_s, done_s = (tf.stack(kind) for kind in zip(*times, strict=True))
        return Update(norm, finite, tf.constant(0), ready_s, done_s, reduced_s, updated_s)

    def _share(self, i: int, gradient: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
        """This rank's share of the new m, m_i / n, flat."""
        ranks = self._world.size
        factor = tf.constant(float(ranks))
        if self._settings.max_grad_norm:
            norm = ranks * tf.sqrt(tf.reduce_sum(square_sums(gradient[None], self._updater.fused)))
            # The other way round a norm that is not finite would become a factor of 0.
            factor *= tf.where(norm > self._limits[i], self._limits[i] / norm, 1.0)
        return self._sums.compiled(_next_share)(m, gradient, factor, self._settings.beta_1, float(ranks))


def _next_share(m: tf.Tensor, gradient: tf.Tensor, factor: tf.Tensor, beta_1: float, ranks: float) -> tf.Tensor:
    return moving_average(m, gradient * factor, beta_1) / ranks
