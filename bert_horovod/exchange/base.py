"""What an exchange is: how ranks agree on an update.

An exchange is a file of this package. The loop and the step know its interface alone. What most do stands here.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.runtime.clock import Clock


class UpdateInputs(NamedTuple):
    """What an update needs beside gradients, as tensors: a Python number would retrace the graph."""

    learning_rate: tf.Tensor  # float32 scalar
    update: tf.Tensor  # float32 scalar: the optimizer's t


class Update(NamedTuple):
    """What one update did, as tensors; equal on all ranks but for the times."""

    gradient_norm: tf.Tensor  # float32 scalar: global L2 norm before clipping, but after clipping of buckets
    finite: tf.Tensor  # bool scalar; False: nothing was updated
    rows: tf.Tensor  # int32 scalar: looked-up rows that were sent alone; see bytes_reduced
    ready_s: tf.Tensor  # float64 [all-reduces]: when what each sends existed, in seconds since the epoch
    done_s: tf.Tensor  # float64 [all-reduces]: when its sum did
    reduced_s: tf.Tensor  # float64 scalar: when all sums did
    updated_s: tf.Tensor  # float64 scalar: when the new parameters did


class Exchange:
    """How ranks agree on an update.

    State of a run is of two kinds. Replicated state (parameters, slots, progress) is equal on all ranks after every
    step for which `agrees_after` is true: then it may be compared, evaluated, saved. What differs between ranks is the
    exchange's own and lies in `TrainingState.per_rank`; `begin` makes it.
    """

    overlaps = False  # whether its buckets go out beside backward, so that a measured plan pays
    rows_alone = False  # whether its plan may send a table's looked-up rows apart from the dense part of its gradient
    plan: BucketPlan
    _world: World

    def begin(self, first: int, last: int) -> None:
        """Make the state that this method keeps per rank, and take over what the progress remembers of it.

        Args:
            first, last: the phase's steps, in the run, counted from 1; a resumed run may begin between them.
        """

    def beside(self, micro_batches: int) -> None:
        """Add what is sent beside forward and backward, if anything, to the graph of each of a step's micro-batches.

        In the last one's graph it is called before `update`.
        """

    def clip(
        self, gradients: dict[str, tf.Tensor], lookups: dict[str, tf.IndexedSlices], micro_batches: int
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices]]:
        """One micro-batch's gradients, of so many a step, as they are to be added up; called inside a graph.

        Those that go in and come out are as update's.
        """
        return gradients, lookups

    def update(
        self,
        gradients: dict[str, tf.Tensor],
        lookups: dict[str, tf.IndexedSlices],
        inputs: UpdateInputs,
        clock: Clock,
    ) -> Update:
        """Agree, and apply the optimizer; called inside a graph.

        Args:
            gradients: this rank's share of the gradient, by parameter, dense, in the dtype it was computed in.
            lookups: by embedding table, its looked-up part, to be added; values [n, width], indices [n].
            inputs: of this step.
            clock: tells times in the graph, or does nothing.
        """
        raise NotImplementedError

    def after_step(self, step: int, loss: float) -> str:
        """What a method does between steps, after optimizer step `step` of the run with this loss of the global batch.

        Returns: what people should know, a line of the log; mostly nothing.
        """
        return ""

    def agrees_after(self, step: int) -> bool:
        """Whether all ranks hold equal parameters and slots after `after_step(step)`."""
        return True

    def remember(self) -> None:
        """Bring what a checkpoint must know of this method into the state's progress."""

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload that one step hands to collectives, in bytes, on average over steps; 0 in a world of one."""
        raise NotImplementedError

    def wire_bytes(self, rows: int = 0) -> float:
        """Bytes that a rank sends in one step, on average over steps: 2 (n - 1) / n of the payload, in rings."""
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced(rows)
