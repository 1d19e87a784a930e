"""What a hook is: it watches a run, and may stop it by raising; it never changes numbers."""

from typing import NamedTuple

from bert_horovod.training.inputs import StepBatch
from bert_horovod.training.run import Run
from bert_horovod.training.step import StepInputs, StepResult, TrainStep


class StepEvent(NamedTuple):
    """An optimizer step that is done and counted."""

    step: int  # its number in the run, from 1
    train_step: TrainStep  # that did it
    result: StepResult
    counts: dict[str, float]  # the task's, over all ranks
    loss: float  # nats
    loss_scale: float  # that the step used; 1 without one
    learning_rate: float
    batch: StepBatch  # this rank's
    inputs: StepInputs
    waited_s: float  # for the batch


class Hook:
    """Every method does nothing; a hook overrides those that it needs. `training/run.py` lists hooks in their order."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def phase(self) -> None:
        """A phase begins: `run.phase` is open."""

    def doing(self, what: str, more_s: float = 0) -> None:
        """The loop does this from now on; it may take so much longer than usual."""

    def wants_times(self, step: int) -> bool:
        """Whether this step must tell times, which costs calls of Python in the graph."""
        return False

    def begin(self, step: int) -> None:
        """Optimizer step `step` begins."""

    def step(self, event: StepEvent) -> None:
        """It is done."""

    def stopping(self) -> None:
        """The run was asked to stop, before its next step."""

    def settle(self) -> None:
        """Finish what is under way in the background."""

    def rolled_back(self) -> None:
        """The run has gone back to a checkpoint: `run.state` is another one."""

    def finish(self) -> None:
        """The last step is done, in order."""
        self.settle()

    def close(self) -> None:
        """The run ends, in whatever way."""
