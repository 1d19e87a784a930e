"""The exchange of gradients: every step they are summed over ranks, clipped once, and applied alike on all ranks.

On the int8 wire each rank keeps what rounding lost and adds it in the next step (exchange/two_step.py), so that over
steps the sum of all updates' gradients is exact but for what is owed in the end. What is owed belongs to buckets: where
a phase begins, with a plan of its own, it is dropped, which loses no more than one step's rounding.
"""

import dataclasses

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.link import reductions
from bert_horovod.exchange.base import Exchange, Update, UpdateInputs
from bert_horovod.exchange.reducer import GradientReducer
from bert_horovod.exchange.updater import Updater
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.clock import Clock


class GradientExchange(Exchange):
    """See exchange.base.Exchange.

    Args:
        recipe: the run's.
        world: the ranks.
        state: what is trained: parameters, progress (runs.state.TrainingState).
        updater: applies the rule to that state.
        plan: the buckets, and the way to sum them, unless the recipe says another.
        held_back: start no all-reduce before the last gradient exists; to measure what overlap is worth.
    """

    overlaps = True
    rows_alone = True

    def __init__(
        self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan, held_back: bool = False
    ) -> None:
        shapes = {name: tuple(variable.shape) for name, variable in updater.parameters.items()}
        possible = reductions(recipe)
        if plan.reduction not in possible:
            plan = dataclasses.replace(plan, reduction=possible[0])
        fused = recipe.execution.xla != "off"
        self.reducer = GradientReducer(world, shapes, plan, recipe.numerics.wire, held_back, fused)
        self.plan = plan
        self._state = state
        self._updater = updater
        self._feeds_errors_back = recipe.numerics.wire == "int8" and recipe.exchange.error_feedback

    def begin(self, first: int, last: int) -> None:
        if self._feeds_errors_back:
            if self._state.progress.step + 1 == first:
                for name in [name for name in self._state.per_rank if name.startswith("error.")]:
                    del self._state.per_rank[name]
            self.reducer.feed_errors_back(self._state.own)
        if self._state.progress.wire_maxima:
            self.reducer.restore_maxima(self._state.progress.wire_maxima)

    def update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        gradients, ready_s, done_s, rows, owed = self.reducer.reduce(gradients, lookups, clock)
        reduced_s = clock(list(gradients.values()))
        grouped = self._updater.grouped(gradients)
        norm = self._updater.norm(grouped)
        finite = tf.math.is_finite(norm)

        def apply() -> tf.Tensor:
            for variable, value in owed:
                variable.assign(value)
            return clock(self._updater.apply(grouped, norm, inputs))

        updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        return Update(norm, finite, rows, ready_s, done_s, reduced_s, updated_s)

    def remember(self) -> None:
        self._state.progress.wire_maxima = self.reducer.maxima_by_name()

    def bytes_reduced(self, rows: int = 0) -> float:
        return self.reducer.bytes_reduced(rows)

    def wire_bytes(self, rows: int = 0) -> float:
        return self.reducer.wire_bytes(rows)
