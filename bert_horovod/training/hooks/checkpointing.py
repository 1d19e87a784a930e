"""Saves checkpoints while training; runs/saving.py writes them."""

import contextlib

from bert_horovod.runs.checkpoint import path_of, paths_in
from bert_horovod.runs.mirroring import Mirror
from bert_horovod.runs.rank_parts import PartWriter
from bert_horovod.runs.saving import Saver, link_newest, prune
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.hooks.divergence import Diverged, require_finite
from bert_horovod.training.run import Run


class CheckpointHook(Hook):
    """Saves every execution.checkpoint_steps steps, at the end of a phase or of the run, and where a hook wants it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._saver: Saver | None = None  # rank 0's
        self._parts: PartWriter | None = None  # only if ranks have state of their own (state.per_rank)
        self._mirror: Mirror | None = None  # rank 0's, if execution.mirror is set
        self._saved_step = -1

    def phase(self) -> None:
        run, job = self.run, self.run.job
        if run.phase.begin and run.state.progress.step == run.phase.begin:
            # The phase before has saved this step. Do not save it again: the model may have grown since.
            self._saved_step = run.phase.begin
        if run.world.rank == 0 and self._saver is None:
            mirror = self._open_mirror()
            self._saver = Saver(run.state, job.output_dir, run.recipe, job.task, job.dataset, run.say, mirror)
            self._saver.before = run.journal.flush  # a resume from the checkpoint has no other way to earlier lines
            self._room_for = run.state
            if run.resumed_from is not None:
                link_newest(job.output_dir, run.resumed_from)  # the link may lead to a damaged one
        elif self._saver is not None and self._room_for is not run.state:
            self._saver.make_room(run.state)
            self._room_for = run.state

    def wants_state(self, step: int) -> bool:
        self._retry = self._saver is not None and self._saver.retry_due() and self.run.exchange.ranks_equal_after(step)
        return self._retry or self.run.save_due(step)

    def step(self, event: StepEvent) -> None:
        run = self.run
        if self._mirror is not None:
            self._mirror.check()
        due = run.save_due(event.step) or any(hook.wants_checkpoint(event.step) for hook in run.hooks)
        if run.state.progress.jumped_in_a_row:  # the run may have diverged: it keeps the checkpoints from before
            run.save_is_late = run.save_is_late or due
        elif due:
            self._save()
            run.save_is_late = False
        elif self._retry and self._parts is not None:  # other ranks' parts are of the step that failed
            self._saver.again()
        elif self._retry:  # on rank 0 alone: what is not finite ends the run when all ranks save
            with contextlib.suppress(Diverged):
                self._save()

    def stopping(self) -> None:
        self.run.waits_for_room = bool(self.run.ended)
        self._save()
        self.wait()

    def wait(self) -> None:
        if self._parts is not None:
            self.run.doing("saving")
            self._parts.finish(lambda: self.run.doing("waiting for room for this rank's part"), self._must_end)
        if self._saver is not None:
            self.run.doing("saving")
            self._saver.finish(lambda: self.run.doing("waiting for room for the checkpoint"), self._must_end)

    def finish(self) -> None:
        self.wait()
        if (mirror := self._open_mirror()) is not None:
            run = self.run
            mirror.finish(lambda: run.doing("copying the newest checkpoint to execution.mirror"), self._must_end)
            newest = path_of(run.job.output_dir, run.state.progress.step)
            prune(run.job.output_dir, newest, run.recipe.execution, run.state.progress.checked)

    def put_aside(self, after: int) -> None:
        if self._mirror is not None:
            self._mirror.withdraw(after)

    def rolled_back(self) -> None:
        self._saved_step = self.run.state.progress.step
        self.run.save_is_late = False

    def _open_mirror(self) -> Mirror | None:
        run = self.run
        if self._mirror is None and run.world.rank == 0 and run.recipe.execution.mirror:
            self._mirror = Mirror(run.job.output_dir, run.recipe.execution, run.say, run.resumed_from)
        return self._mirror

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        if self._parts is not None:
            self._parts.close()
        if self._saver is not None:
            self._saver.close()

    def _must_end(self) -> bool:
        return not self.run.waits_for_room or self.run.asked_to_stop()

    def _save(self) -> None:
        run = self.run
        progress = run.state.progress
        run.doing("saving")
        if self._saved_step != progress.step:
            require_finite(run.state, run.held_out if run.evaluation_due(progress.step) else {})
            if run.exchange is not None:
                run.exchange.to_progress()
                self._write_part()
            if self._saver is not None:
                self._saver.save(run.state, run.position())
        self._saved_step = progress.step

    def _write_part(self) -> None:
        """Begin to write this rank's own state (state.per_rank); either all ranks have such state or none has."""
        run = self.run
        own_arrays = run.state.per_rank
        run.state.progress.ranks_with_parts = run.world.size if own_arrays else 0
        if own_arrays:
            if self._parts is None:
                self._parts = PartWriter(paths_in(run.job.output_dir), run.world, run.say)
            self._parts.write(run.state.progress.step, own_arrays)
