"""Maximal Multiverse Learning: which heads go on. tasks/multiverse.py has the loss.

Twenty times in a training, after its warm-up, the heads end whose moving mean of losses is a share
`objective.elimination` or more above the mean of all living ones: where heads do equally well, all stay. The means are
of losses that are summed over all ranks, so that all ranks eliminate the same heads; they are saved, so that a run that
resumes does too. An eliminated head has no part in the loss, so no gradient; weight decay goes on.
"""

import math

from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.multiverse import ALIVE, MultiverseClassification
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run

MEANS = "head_losses"  # in Progress.task, [heads]: moving means, nats
_TIMES = 20


class Elimination(Hook):
    """Hears of a step before what saves it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        task: MultiverseClassification = run.task
        self._names = task.head_names
        self._every = interval(run.recipe)

    def phase(self) -> None:
        remembered = self.run.state.progress.task
        remembered.setdefault(ALIVE, [1.0] * len(self._names))
        remembered.setdefault(MEANS, [0.0] * len(self._names))

    def step(self, event: StepEvent) -> None:
        if not event.result.finite:
            return
        run, remembered = self.run, self.run.state.progress.task
        losses = [event.result.sums[name] / event.counts["examples"] for name in self._names]
        pairs = zip(remembered[MEANS], losses, strict=True)
        remembered[MEANS] = [mean + (loss - mean) / self._every for mean, loss in pairs]
        warm_up = run.recipe.phase[0].warmup * run.recipe.total_steps
        if event.step % self._every or event.step <= warm_up:
            return
        before = remembered[ALIVE]
        remembered[ALIVE] = survivors(before, remembered[MEANS], run.recipe.objective.elimination)
        if ended := int(sum(before) - sum(remembered[ALIVE])):
            run.say(f"step {event.step}: {ended} heads end, {int(sum(remembered[ALIVE]))} go on")


def interval(recipe: Recipe) -> int:
    """Steps from one elimination to the next, and over which losses are averaged."""
    return math.ceil(recipe.total_steps / _TIMES)


def survivors(alive: list[float], means: list[float], elimination: float) -> list[float]:
    """Which heads go on: 1 or 0 each. The first one always does.

    Args:
        alive: which have gone on so far.
        means: mean losses, nats. They may lack the same factor: only their ratios count.
        elimination: how much above the mean of the living ones a loss may be, as a share.
    """
    living = [mean for lives, mean in zip(alive, means, strict=True) if lives]
    most = (1 + elimination) * sum(living) / len(living)
    return [
        float(lives and (number == 0 or mean <= most))
        for number, (lives, mean) in enumerate(zip(alive, means, strict=True))
    ]
