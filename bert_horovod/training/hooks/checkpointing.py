"""Saves checkpoints while training; runs/saving.py writes them."""

from bert_horovod.runs.saving import Saver
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run


class CheckpointHook(Hook):
    """Saves every execution.checkpoint_steps steps, at the end of a phase, and when the run is asked to stop."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._saver: Saver | None = None  # rank 0's
        self._saved_step = -1

    def phase(self) -> None:
        run, job = self.run, self.run.job
        if run.world.rank == 0 and self._saver is None:
            self._saver = Saver(run.state, job.output_dir, run.recipe, job.task, job.dataset, run.say)

    def step(self, event: StepEvent) -> None:
        retry = self._saver is not None and self._saver.retry_due() and self.run.exchange.agrees_after(event.step)
        if self.run.save_due(event.step) or retry:
            self._save()

    def stopping(self) -> None:
        self._save()
        self.settle()

    def settle(self) -> None:
        if self._saver is not None:
            self.run.doing("saving")
            self._saver.finish(lambda: self.run.doing("waiting for room for the checkpoint"))

    def rolled_back(self) -> None:
        self._saved_step = self.run.state.progress.step

    def _save(self) -> None:
        run = self.run
        run.doing("saving")
        if self._saver is not None and self._saved_step != run.state.progress.step:
            if run.exchange is not None:
                run.exchange.remember()
            self._saver.save(run.state, run.position())
        self._saved_step = run.state.progress.step
