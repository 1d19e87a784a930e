"""Compares the loss with that of earlier runs of the same recipe, while the run goes on."""

from bert_horovod.runs.reference_curves import references_of
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run


class ExpectedLossHook(Hook):
    """Prints on rank 0 when the loss leaves the band of earlier runs, and when it is back in the band."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        references = (
            [reference for reference in references_of(run.recipe, run.job.dataset.hash) if reference.means]
            if run.world.rank == 0
            else []
        )
        self._reference = references[0] if references else None
        self._losses: list[float] = []
        self._outside = False

    def step(self, event: StepEvent) -> None:
        reference, journal = self._reference, self.run.journal
        if reference is None or journal is None:
            return
        self._losses.append(event.loss)
        if event.step % reference.window:
            return
        text, self._losses = reference.judge(event.step, self._losses), []
        if text and not self._outside:
            journal.incident(event.step, text)
        elif self._outside and not text and reference.bounds((event.step - 1) // reference.window):
            journal.incident(event.step, f"at step {event.step} the loss is again as in other runs of this recipe")
        self._outside = bool(text)

    def rolled_back(self) -> None:
        self._losses = []
