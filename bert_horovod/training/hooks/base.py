"""The interface of hooks. A hook watches a run and may stop it by raising an error; it never changes numbers."""

from typing import NamedTuple

from bert_horovod.training.inputs import StepBatch
from bert_horovod.training.run import Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StepInputs, StepResult


class StepEvent(NamedTuple):
    """An optimizer step that is done and counted in the progress.

    Another one may have begun since then: only a hook that `wants_state` finds parameters and slots as it left them.
    """

    step: int  # number in the run, from 1
    train_step: TrainStep  # the compiled step
    result: StepResult
    counts: dict[str, float]  # the task's counts, over all ranks
    loss: float  # nats
    loss_scale: float  # used by this step; 1 without loss scaling
    learning_rate: float
    batch: StepBatch  # this rank's part
    inputs: StepInputs
    waited_s: float  # seconds that the step waited for the batch


class Hook:
    """Each method does nothing; a hook overrides those that it needs. `training/loop.py` lists hooks in their order.

    A whole hook:

        class SlowStepHook(Hook):
            def step(self, event: StepEvent) -> None:
                if event.waited_s > 1:
                    self.run.say(f"step {event.step} waited {event.waited_s:.1f} s for its rows")
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def phase(self) -> None:
        """Called when a phase begins: `run.phase` is open."""

    def doing(self, what: str, more_s: float = 0) -> None:
        """Called when the loop begins activity `what`; it may take `more_s` seconds longer than usual."""

    def wants_times(self, step: int) -> bool:
        """Whether this step must measure times, which needs calls of Python in the graph."""
        return False

    def wants_state(self, step: int) -> bool:
        """Whether this hook reads or changes the run's state after this step: then the next one begins only after it.

        Called once for each step, between `begin` and `step`; the state is then not to be read.
        """
        return False

    def wants_replay(self, step: int) -> bool:
        """Whether `replay` is to be called before this step: then all steps before it are done first."""
        return False

    def replay(self, step: int, train_step: TrainStep, batch: StepBatch, inputs: StepInputs) -> int | None:
        """Called before a step for which this hook wants it: the state is the one that the step begins with.

        Returns the number of the micro-batch of which StepResult.checksums are wanted; None: of none.
        """
        return None

    def wants_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint should be saved after this step, whose evaluation is done; equal on all ranks."""
        return False

    def wants_to_end(self) -> bool:
        """Whether the run should end after the step that is done, with `run.ended`, the reason; asked before each step.

        All ranks that ask must give the same answer.
        """
        return False

    def begin(self, step: int) -> None:
        """Called when optimizer step `step` begins; `step` may not yet have been called for the one before."""

    def step(self, event: StepEvent) -> None:
        """Called when an optimizer step is done."""

    def stopping(self) -> None:
        """Called when the run was asked to stop, before its next step."""

    def wait(self) -> None:
        """Wait for this hook's background work, such as writing a checkpoint."""

    def rolled_back(self) -> None:
        """Called when the run has gone back to a checkpoint: `run.state` is a new object."""

    def put_aside(self, after: int) -> None:
        """Called when checkpoints of later steps than `after` may be wrong, and the run ends for that."""

    def finish(self) -> None:
        """Called when the run ends without an error, after the last step."""
        self.wait()

    def close(self) -> None:
        """Called when the run ends, also after an error."""
