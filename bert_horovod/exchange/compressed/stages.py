"""The stages of a method that freezes the second moment v, and its settings: dense steps, then compressed steps.

A phase starts dense, because parameters that were unused before, such as later positions, have no second moment v yet.
v is frozen after the share exchange.dense of the phase's steps, but not before the learning rate's warm-up ends. With
"auto" v is frozen when it changes little (the rule of Tang et al. 2021, arXiv 2102.02888, here a limit above and below
the ratio): after the warm-up,

    0.96 <= ||v_t||_1 / ||v_(t - M)||_1 <= 1 / 0.96        M = 1 / (1 - beta_2), v bias-corrected, every M steps

If in the compressed stage the loss is numerics.loss_jump / 3 above its moving mean (1 nat, if loss_jump is 0), M dense
steps follow, and then v is frozen again. It is a third of loss_jump, so that this happens before the run counts as
diverged.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_horovod.errors import UserError
from bert_horovod.optimizers.schedule import whole_steps
from bert_horovod.recipe.fields import setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase

# Plans assume this share for dense = "auto": published shares are 0.15 to 0.25 (arXiv 2102.02888).
AUTO_DENSE = 0.2
SIGNS = ("signs", "two_step")  # wire of compressed sums and the way to sum them, for a Stage
_STEADY = 0.96
_JUMP = 1 / 3  # of numerics.loss_jump
_SETTLED = 20  # updates before the moving mean of losses is used


class Stages:
    """The current stage of a run; its state is plain values in `progress.exchange`, so that checkpoints hold it."""

    def __init__(self, recipe: Recipe, progress) -> None:
        self._recipe, self._progress = recipe, progress
        self.memory = max(1, round(1 / (1 - recipe.optimizer.beta_2)))  # M: steps over which v averages

    @property
    def frozen(self) -> bool:
        """Whether v is frozen in the next step."""
        return self._known.get("frozen", False)

    @property
    def first(self) -> int:
        """The first step of the current dense stage, or of the last one if v is frozen."""
        return self._known["dense_from"]

    @property
    def warm(self) -> int:
        """The last step of the phase's warm-up; without warm-up the step before the phase."""
        return self._warm

    @property
    def _known(self) -> dict:
        return self._progress.exchange

    def begin(self, first: int, last: int) -> bool:
        """Start or resume a phase with these steps; returns True if the phase starts now, False if it is resumed."""
        phase = phase_of(self._recipe, first)
        self._last = last
        self._warm = first - 1 + whole_steps(phase.steps, phase.warmup)
        if self._known.get("first") == first:
            return False
        dense = self._recipe.exchange.dense
        until = None if dense == "auto" else max(first - 1 + whole_steps(phase.steps, dense), self._warm, first)
        self._known.update(first=first, frozen=False, dense_from=first, dense_until=until, v_sum=None)
        return True

    def looks_at_v(self, step: int) -> bool:
        """Whether `steady` must be called after this step."""
        return not self.frozen and self._known["dense_until"] is None and (step - self.first + 1) % self.memory == 0

    def steady(self, step: int, v_sum: float) -> None:
        """End the dense stage with this step if v is steady; `v_sum` is the sum of the bias-corrected v."""
        before, self._known["v_sum"] = self._known["v_sum"], v_sum
        if before and step >= self._warm and _STEADY <= v_sum / before <= 1 / _STEADY:
            self._known["dense_until"] = step

    def freezes_after(self, step: int) -> bool:
        """Whether the dense stage ends with this step; never with a phase's last step or before the first update."""
        until = self._known["dense_until"]
        return not self.frozen and until is not None and until <= step < self._last and self._progress.updates > 0

    def freeze(self) -> None:
        self._known["frozen"] = True

    def jumped(self, loss: float) -> bool:
        """Whether this loss of a compressed step is far above the moving mean of the losses before."""
        mean, jump = self._progress.mean_loss, self._recipe.numerics.loss_jump
        settled = mean is not None and self._progress.updates > _SETTLED and math.isfinite(loss)
        return self.frozen and settled and loss > mean + (_JUMP * jump or 1.0)

    def thaw(self, step: int) -> None:
        """Make the `memory` steps after this one dense."""
        self._known.update(frozen=False, dense_from=step + 1, dense_until=step + self.memory)


def phase_of(recipe: Recipe, first: int) -> Phase:
    """The phase that begins with a step of the run, from 1."""
    begin = 1
    for phase in recipe.phase:
        if begin == first:
            return phase
        begin += phase.steps
    raise ValueError(f"no phase of the recipe begins with step {first}")


@dataclass(frozen=True)
class StagedSettings(ExchangeMethod):
    """Signs of momenta, once the second moment is frozen."""

    # Fraction of each phase's steps, from its start, with dense gradients, at least the learning rate's warm-up;
    # published recipes have 0.15 to 0.25 (arXiv 2102.02888). 0/1 Adam: fraction of the steps in which the second moment
    # v is still updated; the warm-up is enough (arXiv 2202.06009). auto: until v changes little; see
    # exchange/compressed/stages.py
    dense: float | Literal["auto"] = setting(0.2, minimum=0, maximum=1)

    wires: ClassVar[tuple[str, ...]] = ("float32", "float16")
    why_wires: ClassVar[str] = "decides the second moment by its dense gradients"

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        learning = self.learning_steps(phase)
        return [
            Stage("dense", learning / phase.steps, recipe.numerics.wire, reduction),
            Stage("compressed", (phase.steps - learning) / phase.steps, *SIGNS),
        ]

    def learning_steps(self, phase: Phase) -> int:
        """Steps of the phase before the second moment is frozen."""
        share = AUTO_DENSE if self.dense == "auto" else self.dense
        return min(phase.steps, max(1, *(whole_steps(phase.steps, fraction) for fraction in (share, phase.warmup))))

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values()))

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return True

    def check(self, recipe: Recipe) -> None:
        for i, phase in enumerate(recipe.phase):
            if self.dense != "auto" and self.dense < phase.warmup:
                raise UserError(
                    f"exchange.dense = {self.dense:g}: the second moment cannot be frozen before the learning rate has "
                    f"settled; expected at least phase.{i}.warmup = {phase.warmup:g}, or 'auto'"
                )


@dataclass(frozen=True)
class OneBitSettings(StagedSettings):
    """Signs of momenta in each step, once the second moment is frozen: 1-bit Adam and 1-bit LAMB."""

    price: ClassVar[str] = "sends signs once the second moment is frozen; BERT-mini: 0.013 nats behind float32"

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe | None:
        if recipe.optimizer.name != cls.optimizer:
            return None
        settings = cls()
        dense = max(settings.dense, *(phase.warmup for phase in recipe.phase))
        return dataclasses.replace(
            recipe,
            exchange=dataclasses.replace(settings, dense=dense),
            numerics=dataclasses.replace(recipe.numerics, wire="float16"),
        )
