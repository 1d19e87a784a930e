"""A TensorBoard trace of some optimizer steps (execution.profile_steps)."""

from __future__ import annotations

from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run


class ProfileHook(Hook):
    """Traces rank 0's steps of a range to output_dir/tensorboard; does nothing for an empty range.

    The first step inside the range opens the trace, so a run that resumes inside the range traces the rest of it.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        steps = run.recipe.execution.profile_steps if run.world.rank == 0 else ()
        self._steps = range(steps[0], steps[1] + 1) if steps else range(0)
        self._begun = 0  # the step at which the open trace began; 0: none is open
        self._step: tf.profiler.experimental.Trace | None = None

    def wants_state(self, step: int) -> bool:
        return step in self._steps or step + 1 in self._steps  # the trace has whole steps

    def begin(self, step: int) -> None:
        if step not in self._steps:
            return
        if not self._begun:
            tf.profiler.experimental.start(self._directory)
            self._begun = step
        self._step = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
        self._step.__enter__()

    def step(self, event: StepEvent) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self._steps and event.step == self._steps[-1]:
            self.finish()

    def finish(self) -> None:
        """Write the trace, if one is open."""
        if self._begun:
            begun, self._begun = self._begun, 0
            tf.profiler.experimental.stop()
            self.run.say(
                f"trace of steps {begun} to {self.run.state.progress.step}: tensorboard --logdir {self._directory}, "
                "tab Profile"
            )

    def close(self) -> None:
        self.finish()

    @property
    def _directory(self) -> str:
        return str(self.run.job.output_dir / "tensorboard")
