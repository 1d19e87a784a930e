"""The interface of an exchange: the method by which ranks agree on an update.

Each exchange is a module of this package. The loop and the step use only this interface. Class Exchange holds the
defaults that most methods keep.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock

Gradients = dict[str, "tf.Tensor"]  # dense, by parameter
Lookups = dict[str, "tf.IndexedSlices"]  # sparse embedding gradients, by table: values [n, width], indices [n]


class UpdateInputs(NamedTuple):
    """Further inputs of an update beside gradients; tensors, because another Python number would retrace the graph."""

    learning_rate: tf.Tensor  # float32 scalar
    update: tf.Tensor  # float32 scalar: the optimizer's t
    loss_scale: tf.Tensor | float = 1.0  # float32 scalar: see Exchange.divides_by_loss_scale


class Update(NamedTuple):
    """The report of one update, as tensors; equal on all ranks, except for the times."""

    finite: tf.Tensor  # bool scalar; False: nothing was updated
    # Scalars by name. "gradient_norm": global L2 norm before clipping, but after clipping of buckets, see
    # Exchange.norm_metric; "rows", if there are any: looked-up rows that were sent apart from the buckets, see
    # Exchange.bytes_reduced. Any other is a metric of that name.
    scalars: dict[str, tf.Tensor]
    ready_s: tf.Tensor  # float64 [all-reduces]: time at which each one's input existed, in seconds since the epoch
    done_s: tf.Tensor  # float64 [all-reduces]: time at which its sum existed
    reduced_s: tf.Tensor  # float64 scalar: time at which all sums existed
    updated_s: tf.Tensor  # float64 scalar: time at which the new parameters existed


class Exchange:
    """The code of a method by which ranks agree on an update; recipe.sections.ExchangeMethod describes the method.

    A run has two kinds of state. Replicated state (parameters, slots, progress) is equal on all ranks after every step
    for which `ranks_equal_after` is true: only then may it be compared, evaluated or saved. State that differs between
    ranks belongs to the exchange and is in `TrainingState.per_rank`; `begin` makes it. `updater` (exchange/updater.py)
    applies the optimizer's rule to `state` (runs.state.TrainingState).
    """

    # Metric that the next update's `gradient_norm` is: "exchange_norm" if it is of something else than the gradient.
    norm_metric: str = "gradient_norm"
    # Whether `update` takes gradients in float16 that still have the loss scale, and divides them by
    # UpdateInputs.loss_scale; gradients in other dtypes never have it. Then no float32 copy of them is written first.
    divides_by_loss_scale: bool = False

    def __init__(self, recipe: Recipe, world: World, state, updater, plan: BucketPlan) -> None:
        self._recipe, self._world, self._state, self._updater, self.plan = recipe, world, state, updater, plan
        self._shapes = updater.shapes

    def begin(self, first: int, last: int) -> None:
        """Make the state that this method keeps per rank, and read the entries that `to_progress` left in the progress.

        `first`, `last`: the phase's first and last step, counted in the run from 1; a resumed run may start between.
        """

    def during_backward(self, micro_batches: int) -> None:
        """Add collectives to the graph of a micro-batch that run while the device computes it; default: none.

        Called in the graph of every micro-batch of a step; in the last one's before `update`.
        """

    def clip(self, gradients: Gradients, lookups: Lookups, micro_batches: int) -> tuple[Gradients, Lookups]:
        """Clip one micro-batch's gradients before they are added up; called inside a graph.

        `micro_batches`: per rank and step. Gradients and lookups, as arguments and as results, are like those of
        `update`.
        """
        return gradients, lookups

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        """Sum over ranks and apply the optimizer; called inside a graph.

        `gradients` are this rank's share, in the dtype they were computed in; `lookups` are not yet added to them.
        `clock` records times in the graph, or does nothing.
        """
        raise NotImplementedError

    @property
    def works_after_steps(self) -> bool:
        """Whether `after_step` does something: then no step may begin before it."""
        return type(self).after_step is not Exchange.after_step

    def after_step(self, step: int, loss: float) -> str:
        """Work of the method between steps: called after optimizer step `step` of the run.

        `loss` is the step's, over the global batch. Returns a line for the log, or "" if there is nothing to say.
        """
        return ""

    def ranks_equal_after(self, step: int) -> bool:
        """Whether all ranks hold equal parameters and slots after `after_step(step)`."""
        return True

    def to_progress(self) -> None:
        """Write the values of this method that a checkpoint needs into the state's progress."""

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload of one step's collectives, in bytes, on average over steps; 0 in a world of one."""
        raise NotImplementedError

    def wire_bytes(self, rows: int = 0) -> float:
        """Bytes that a rank sends in one step, on average over steps: 2 (n - 1) / n of the payload, in rings."""
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced(rows)
