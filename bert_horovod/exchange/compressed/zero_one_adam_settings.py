"""0/1 Adam as recipes, plans and checks see it; zero_one_adam.py has the code."""

import bisect
import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.exchange.compressed.staged_settings import SIGNS, StagedSettings
from bert_horovod.optimizers.schedule import sync_period, whole_steps
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class ZeroOneAdamSettings(StagedSettings):
    """Signs of the sum of a rank's own AdamW steps, at syncs that become rarer as the learning rate falls."""

    method: str = named("zero_one_adam")
    variance_updates: int = setting(16, minimum=1)  # updates of v after which their interval doubles
    # Largest number of steps between two syncs, a power of two; the published recipe has 16
    interval: int = setting(1, minimum=1)

    optimizer: ClassVar[str] = "adamw"
    intervals: ClassVar[tuple[str, ...]] = ("interval",)

    def code(self) -> type:
        from bert_horovod.exchange.compressed.zero_one_adam import ZeroOneAdam

        return ZeroOneAdam

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        steps, learning = phase.steps, self.learning_steps(phase)
        warm = 0 if self.form == "published" else whole_steps(steps, phase.warmup)
        updates = warm + _v_updates(learning - warm, self.variance_updates)
        local = steps - learning
        syncs = _syncs(phase, learning + 1, recipe.optimizer.decay_power, self.interval)
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
        if self.interval & (self.interval - 1):
            raise UserError(
                f"exchange.interval = {self.interval}: exchange.method = 'zero_one_adam' doubles its interval up to "
                "this one; expected a power of two"
            )


def _v_updates(steps: int, updates: int) -> int:
    """How many of the first `steps` steps update 0/1 Adam's v: `updates` times each step, then every second, ..."""
    done, interval = 0, 1
    while steps > interval * updates:
        done, steps, interval = done + updates, steps - interval * updates, 2 * interval
    return done + steps // interval


def _syncs(phase: Phase, first: int, power: float, most: int) -> float:
    """Number of 0/1 Adam's syncs from step `first` of the phase to its end; the learning rate must not rise there."""
    syncs, step = 0.0, first
    while step <= phase.steps:
        period = sync_period(phase, step, power, most)
        # The first step with a longer period.
        end = bisect.bisect_right(
            range(phase.steps + 1), period, lo=step, key=lambda later_step: sync_period(phase, later_step, power, most)
        )
        syncs, step = syncs + (end - step) / period, end
    return syncs
