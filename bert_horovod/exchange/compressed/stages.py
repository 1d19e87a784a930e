"""The stages of a method that freezes the second moment v: dense steps, then compressed steps. No TensorFlow.

A phase starts dense, because parameters that were unused before, such as later positions, have no second moment v yet.
v is frozen after the share exchange.dense of the phase's steps, but not before the learning rate's warm-up ends. With
"auto" v is frozen when it changes little (the rule of Tang et al. 2021, arXiv 2102.02888, here a limit above and below
the ratio): after the warm-up,

    0.96 <= ||v_t||_1 / ||v_(t - M)||_1 <= 1 / 0.96        M = 1 / (1 - beta_2), v bias-corrected, every M steps

If in the compressed stage the loss is numerics.loss_jump / 3 above its moving mean (1 nat, if loss_jump is 0), M dense
steps follow, and then v is frozen again. It is a third of loss_jump, so that this happens before the run counts as
diverged.
"""

import math

from bert_horovod.optimizers.schedule import whole_steps
from bert_horovod.recipe.sections import Phase, Recipe

_STEADY = 0.96
_JUMP = 1 / 3  # of numerics.loss_jump
_SETTLED = 20  # updates before the moving mean of losses is used


class Stages:
    """The current stage of a run; its state is plain values in the progress, so that checkpoints hold it.

    Args:
        recipe: the run's.
        progress: the run's (runs.state.Progress); `progress.exchange` is read and written.
    """

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
