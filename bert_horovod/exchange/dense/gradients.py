"""The exchange of gradients: each step sums them over ranks, clips them once, and makes the same update on all ranks.

With `optimizer.clipping = "bucket"` gradients are clipped before the sum instead, so that no update waits for a norm
over all gradients (Samsung's BERT of MLPerf Training 2.0, arXiv 2402.02447). There are B buckets, n ranks and K
micro-batches per rank. Each micro-batch clips each bucket; g_j is the bucket's gradient of the micro-batch's own mean
loss:

    g_j *= 1 / max(1, sqrt(B) ||g_j|| / max_grad_norm)

Then the mean over all n K micro-batches is taken; its norm is at most max_grad_norm. The micro-batches are those of the
global batch, so the number of ranks does not change the result; execution.micro_batch and the cut into buckets do.

On the int8 wire each rank keeps its rounding error and adds it in the next step (exchange/two_step.py). So the sum of
gradients over all steps is exact, except for the errors that are left at the end. Errors are kept by bucket; a new
phase, which has its own bucket plan, drops them, and loses no more than one step's rounding.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.dense.reducer import GradientReducer, whole
from bert_horovod.exchange.updater import Updater
from bert_horovod.optimizers.applying import clip_factor, square_sums
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage, reductions
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock


class GradientExchange(Exchange):
    """See exchange.base.Exchange.

    If the recipe does not allow the plan's way to sum, the recipe's first one is taken. With `held_back` no all-reduce
    starts before the last gradient exists; benchmarks measure the gain of overlap with it.
    """

    def __init__(
        self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan, held_back: bool = False
    ) -> None:
        possible = reductions(recipe)
        if plan.reduction not in possible:
            plan = dataclasses.replace(plan, reduction=possible[0])
        super().__init__(recipe, world, state, updater, plan)
        self._settings, self._wire = recipe.optimizer, recipe.numerics.wire
        self._fused = recipe.execution.xla != "off"
        self.reducer = GradientReducer(world, self._shapes, plan, self._wire, held_back, self._fused)
        # In one program with the cast to the wire; gradients that are clipped before it need their magnitude.
        self.divides_by_loss_scale = (
            world.size > 1 and recipe.numerics.wire == "float16" and recipe.optimizer.clipping == "global"
        )
        self._feeds_errors_back = recipe.numerics.wire == "int8"

    def begin(self, first: int, last: int) -> None:
        if self._feeds_errors_back:
            if self._state.progress.step + 1 == first:
                for name in [name for name in self._state.per_rank if name.startswith("error.")]:
                    del self._state.per_rank[name]
            self.reducer.feed_errors_back(self._state.own)
        if self._state.progress.wire_maxima:
            self.reducer.restore_maxima(self._state.progress.wire_maxima)

    def clip(self, gradients: Gradients, lookups: Lookups, micro_batches: int) -> tuple[Gradients, Lookups]:
        if self._settings.clipping == "global":
            return gradients, lookups
        gradients = {name: tf.cast(gradient, tf.float32) for name, gradient in whole(gradients, lookups).items()}
        shares = self._world.size * micro_batches
        return clip_buckets(gradients, self.plan.buckets, shares, self._settings.max_grad_norm, self._fused), {}

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        finite_before_sums = self._finite_before_sums(gradients)
        gradients, ready_s, done_s, rows, owed = self.reducer.reduce(gradients, lookups, clock, inputs.loss_scale)
        reduced_s = clock(list(gradients.values()))
        grouped = self._updater.grouped(gradients)
        norm = self._updater.norm(grouped)
        finite = tf.math.is_finite(norm) if finite_before_sums is None else finite_before_sums

        def apply() -> tf.Tensor:
            for variable, error in owed:
                variable.assign(error)
            return clock(self._updater.apply(grouped, norm, inputs))

        if self._updater.at_once and not owed:
            updated_s = clock(self._updater.apply_if(finite, grouped, norm, inputs))
        else:
            updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        return Update(finite, {"gradient_norm": norm, "rows": rows}, ready_s, done_s, reduced_s, updated_s)

    def _finite_before_sums(self, clipped: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Whether the sums of clipped buckets will be finite, bool scalar; None: not known before the sums exist.

        If it is known, a parameter is updated as soon as its own sum exists, while other buckets are still summed. The
        first number of each bucket is enough, because clip_buckets fills a bucket that is not finite with NaN; finite
        sums cannot overflow float32, because clipped norms are small.
        """
        settings = self._settings
        early = settings.clipping == "bucket" and settings.max_grad_norm > 0 and self._wire == "float32"
        if not early or self._world.size == 1:
            return None
        numbers = [tf.reshape(clipped[bucket[0]], [-1])[0] for bucket in self.plan.buckets]
        broken = 1.0 - tf.cast(tf.reduce_all(tf.math.is_finite(tf.stack(numbers))), tf.float32)
        return self._world.all_reduce(tf.stack([broken]), "broken")[0] == 0

    def to_progress(self) -> None:
        self._state.progress.wire_maxima = self.reducer.maxima_by_name()

    def bytes_reduced(self, rows: int = 0) -> float:
        return self.reducer.bytes_reduced(rows)

    def wire_bytes(self, rows: int = 0) -> float:
        return self.reducer.wire_bytes(rows)


def clip_buckets(
    gradients: Gradients, buckets: list[list[str]], shares: int, max_grad_norm: float, fused: bool
) -> dict[str, tf.Tensor]:
    """Clip each bucket of a micro-batch's gradient by its own norm; see the head of this file.

    `gradients`: the micro-batch's own mean gradient divided by `shares`, the micro-batches of all ranks in a step;
    float32 by name. `max_grad_norm` limits the mean gradient's norm; 0: no clipping. With `fused` XLA compiles the sums
    of squares. A bucket whose norm is not finite is filled with NaN, so that the step is skipped.
    """
    clipped = {}
    for bucket in buckets:
        squares = tf.stack([square_sums(gradients[name][None], fused)[0] for name in bucket])
        norm = shares * tf.sqrt(tf.reduce_sum(squares))
        factor = clip_factor(norm, max_grad_norm / math.sqrt(len(buckets)))
        factor = tf.where(tf.math.is_finite(norm), factor, float("nan"))
        clipped |= {name: gradients[name] * factor for name in bucket}
    return {name: clipped[name] for name in gradients}


@dataclass(frozen=True)
class GradientsSettings(ExchangeMethod):
    """Gradients, in each step, in the dtype of numerics.wire."""

    method: str = named("gradients")
    code: ClassVar[type] = GradientExchange

    clips_buckets: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    for_one_rank: ClassVar[bool] = True

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [Stage("dense", 1.0, recipe.numerics.wire, reduction)]

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        # Worker errors; server errors are few.
        return sum(map(math.prod, shapes.values())) * (recipe.numerics.wire == "int8")

    def sends_less(self, recipe: Recipe) -> str:
        return "numerics.wire = 'int8'" if recipe.numerics.wire == "int8" else ""

    def rows_alone(self, recipe: Recipe) -> bool:
        return recipe.numerics.wire != "int8"  # see dense/reducer.py

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return reductions == ("two_step",)

    def may_sum_in_two_steps(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions
