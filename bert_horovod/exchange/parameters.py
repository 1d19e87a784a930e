"""Local updates: each rank updates its own parameters, and every so many steps all are averaged (local SGD).

    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)          every step; g_r: rank r's share of the gradient, n ranks
    x_r <- (x_1 + ... + x_n) / n, and so m_r and v_r     after every exchange.interval steps

(Stich 2019, arXiv 1805.09767.) The rule is any optimizer's. Its slots are averaged with the parameters, because then
all ranks are equal after an average, which may be compared, evaluated and saved. With adamw that is three times the
bytes; docs/exchange.md has what it gained on a toy.

g_1 + ... + g_n is the global gradient, so that with plain SGD and an interval of 1 the average is
x - lr (g_1 + ... + g_n): what the exchange of gradients gives, to rounding. With adamw and an interval of 1, m is that
of the exchange of gradients at the same parameters, and v is not: it is a mean of the ranks' squares, which holds the
variance over ranks too, where the exchange of gradients has squares of the mean. Clipping is by each rank's own norm.

Between averages ranks differ, so that nothing may be compared, evaluated or saved there: recipe/checking_exchange.py
holds all these to steps that the interval divides.
"""

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Update, UpdateInputs
from bert_horovod.exchange.local_step import average_all, numbers, ring_bytes, update_alone
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
        self._slots = state.slots
        self._interval = recipe.exchange.interval
        self._average = tf.function(lambda: average_all(world, updater, state.slots, plan.buckets), autograph=False)

    def begin(self, first: int, last: int) -> None:
        pass

    def beside(self, micro_batches: int) -> None:
        pass

    def update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        return update_alone(self._world, self._updater, gradients, lookups, inputs, clock)

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
        return 4 * numbers(self._updater.parameters) * (1 + len(self._slots)) / self._interval

    def wire_bytes(self, rows: int = 0) -> float:
        return ring_bytes(self._world, self.bytes_reduced(rows))
