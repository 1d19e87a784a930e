"""Ends heads with a high loss; several_heads.py has the loss.

A training has at most twenty intervals. At the end of each, after warm-up, the heads are eliminated whose moving mean
of losses is higher than (1 + `finetuning.elimination`) times the mean over all living heads: if heads do equally well,
all stay. The losses are summed over all ranks, so that all ranks eliminate the same heads; checkpoints save the moving
means, so that a run that resumes eliminates the same heads too. An eliminated head has no part in the loss, so it gets
no gradient; weight decay still changes it.
"""

import math

from bert_horovod.experiments.multiverse.several_heads import ALIVE, MultiverseClassification
from bert_horovod.recipe.sections import Recipe
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run

MEANS = "head_losses"  # key in Progress.task of the heads' moving means of losses: [heads], nats
_TIMES = 20


class Elimination(Hook):
    """Eliminates heads after a step, before another hook saves the step's checkpoint."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        task: MultiverseClassification = run.task
        self._names = task.head_names
        self._every = interval(run.recipe)

    def phase(self) -> None:
        remembered = self.run.state.progress.task
        remembered.setdefault(ALIVE, [1.0] * len(self._names))
        remembered.setdefault(MEANS, [0.0] * len(self._names))

    def wants_state(self, step: int) -> bool:
        return step % self._every == 0  # the next step's loss reads which heads are alive

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
        alive_before = remembered[ALIVE]
        remembered[ALIVE] = survivors(alive_before, remembered[MEANS], run.recipe.finetuning.elimination)
        if ended := int(sum(alive_before) - sum(remembered[ALIVE])):
            run.say(f"step {event.step}: {ended} heads end, {int(sum(remembered[ALIVE]))} go on")


def interval(recipe: Recipe) -> int:
    """Steps from one elimination to the next; the moving means of losses average over about as many."""
    return math.ceil(recipe.total_steps / _TIMES)


def survivors(alive: list[float], means: list[float], elimination: float) -> list[float]:
    """Which heads stay alive, 1 or 0 each, as `alive` says it of before; the first head always does.

    A head stays if its mean loss is at most (1 + elimination) times the mean of the living heads.
    """
    living = [mean for lives, mean in zip(alive, means, strict=True) if lives]
    most = (1 + elimination) * sum(living) / len(living)
    return [
        float(lives and (number == 0 or mean <= most))
        for number, (lives, mean) in enumerate(zip(alive, means, strict=True))
    ]
