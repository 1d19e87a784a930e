"""Local updates: each rank updates its own parameters, and every so many steps they are averaged (local SGD).

    x_r <- x_r - lr n g_r             every step; g_r: rank r's share of the gradient of the global mean, n ranks
    x_r <- (x_1 + ... + x_n) / n      after every exchange.interval steps

(Stich 2019, arXiv 1805.09767.) g_1 + ... + g_n is the global gradient, so that with plain SGD and an interval of 1 the
average is x - lr (g_1 + ... + g_n): what the exchange of gradients gives, to rounding.

Between averages ranks differ, so that nothing may be compared, evaluated or saved there: recipe/checking.py holds all
these to steps that the interval divides.
"""

import math

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Update, UpdateInputs
from bert_horovod.exchange.reducer import with_rows
from bert_horovod.exchange.updater import Updater
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.clock import Clock


class ParameterExchange:
    """See exchange.base.Exchange; the arguments are those of GradientExchange. Buckets are those of the average."""

    overlaps = False
    rows_alone = False

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        self.plan = plan
        self._world = world
        self._updater = updater
        self._interval = recipe.exchange.interval
        self._average = tf.function(self._average_parameters, autograph=False)

    def begin(self, first: int, last: int) -> None:
        pass

    def update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        gradients = {
            name: with_rows(gradient, lookups[name]) if name in lookups else tf.cast(gradient, tf.float32)
            for name, gradient in gradients.items()
        }
        grouped = [group * float(self._world.size) for group in self._updater.grouped(gradients)]
        norm = self._updater.norm(grouped)
        # All ranks skip an update that is not finite on one of them: else one of them would be an update behind.
        norms = self._world.all_reduce(tf.stack([norm]), "norms")
        mean_norm = norms[0] / self._world.size
        finite = tf.math.is_finite(mean_norm)
        reduced_s = clock([norms])
        updated_s = tf.cond(finite, lambda: clock(self._updater.apply(grouped, norm, inputs)), lambda: clock([norm]))
        none = tf.zeros([0], tf.float64)
        return Update(mean_norm, finite, tf.constant(0), none, none, reduced_s, updated_s)

    def after_step(self, step: int, loss: float) -> str:
        if self.agrees_after(step) and self._world.size > 1:
            self._average()
        return ""

    def agrees_after(self, step: int) -> bool:
        return step % self._interval == 0

    def remember(self) -> None:
        pass

    def bytes_reduced(self, rows: int = 0) -> float:
        if self._world.size == 1:
            return 0.0
        numbers = sum(math.prod(variable.shape) for variable in self._updater.parameters.values())
        return 4 * numbers / self._interval

    def wire_bytes(self, rows: int = 0) -> float:
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced(rows)

    def _average_parameters(self) -> None:
        parameters = self._updater.parameters
        averaged = {}
        for i, bucket in enumerate(self.plan.buckets):
            flat = tf.concat([tf.reshape(parameters[name], [-1]) for name in bucket], 0)
            flat = self._world.all_reduce(flat, f"parameters.{i}") / self._world.size
            parts = tf.split(flat, [math.prod(parameters[name].shape) for name in bucket])
            averaged |= {
                name: tf.reshape(part, parameters[name].shape) for name, part in zip(bucket, parts, strict=True)
            }
        for name, value in averaged.items():
            parameters[name].assign(value)
        self._updater.cast.refresh({name: averaged[name] for name in parameters}, narrow=None)
