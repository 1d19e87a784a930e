"""What micro-batches of a step have in common: sums of gradients, and a first pass for losses of the global batch.

Gradients of a step's micro-batches are added up in float32, in variables of their own.

The first of two passes is for losses that compare vectors of the whole global batch. GradCache (Gao et al. 2021, arXiv
2101.06983): a first pass without gradients gives the vectors of all micro-batches of all ranks, and these the
derivative of the loss by each vector. The second pass is the step as it always is; its gradients are those of
sum(vector * derivative). Dropout is a function of position, so the second pass repeats the vectors of the first. The
memory needed is that of one micro-batch and of the global batch's vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from bert_horovod.collectives.world import World
from bert_horovod.exchange.base import Gradients, Lookups
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.model.forward import Forward
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.base import ContrastiveTask, Task
from bert_horovod.training.step_results import Layout, StepInputs, unflat


class Accumulators:
    """The sums of gradients of all micro-batches of a step but the last.

    The first micro-batch of a step overwrites them, so that nothing has to set them to zero. `in_place`: whether one
    compiled program changes all of them where they are.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], in_place: bool) -> None:
        self._variables = {name: tf.Variable(tf.zeros(shape), trainable=False) for name, shape in shapes.items()}
        self._in_place = in_place

    def add(self, gradients: Gradients, lookups: Lookups, first: tf.Tensor) -> list[tf.Tensor]:
        """Add a micro-batch's gradients, or assign them if it is the `first`; returns tensors to wait for."""
        if has_gpu():  # it would add the rows of a scatter in any order
            gradients, lookups = whole(gradients, lookups), {}
        if self._in_place:
            return [self._added_in_place(whole(gradients, lookups), first)]
        added = []
        for name, gradient in gradients.items():
            variable = self._variables[name]
            added.append(_assign_or_add(variable, tf.cast(gradient, tf.float32), first))
            if name in lookups:
                ids = tf.reshape(lookups[name].indices, [-1, 1])
                row_gradients = tf.reshape(lookups[name].values, [-1, variable.shape[1]])
                added.append(variable.scatter_nd_add(ids, row_gradients))
        return added

    def with_last(self, gradients: Gradients) -> Gradients:
        """The step's gradients, float32: the sums and those of its last micro-batch."""
        return {name: self._variables[name] + tf.cast(gradient, tf.float32) for name, gradient in gradients.items()}

    def _added_in_place(self, gradients: Gradients, first: tf.Tensor) -> tf.Tensor:
        @tf.function(jit_compile=True, autograph=False)
        def program(gradients: Gradients, first: tf.Tensor) -> tf.Tensor:
            for name, gradient in gradients.items():
                variable, gradient = self._variables[name], tf.cast(gradient, tf.float32)
                variable.assign(tf.where(first, gradient, variable + gradient))
            return tf.identity(first)

        return program(gradients, first)


def _assign_or_add(variable: tf.Variable, addend: tf.Tensor, assign: tf.Tensor) -> tf.Tensor:
    """Assign the value to the variable if `assign` is true, else add it; returns a scalar that is ready after that."""

    def after(changed: tf.Variable) -> tf.Tensor:
        with tf.control_dependencies([changed]):
            return tf.identity(assign)

    return tf.cond(assign, lambda: after(variable.assign(addend)), lambda: after(variable.assign_add(addend)))


def needs_first_pass(task: Task, world_size: int, micro_batches: int) -> bool:
    """Whether a step has two passes: a task compares vectors, and a micro-batch is less than the global batch."""
    return isinstance(task, ContrastiveTask) and world_size * micro_batches > 1


class FirstPass:
    """Computes what the second pass reads of all micro-batches; all ranks have equally many of the same shape.

    `forward` makes a forward pass from a micro-batch's first row and its inputs.
    """

    def __init__(
        self,
        task: ContrastiveTask,
        world: World,
        micro_batches: int,
        forward: Callable[[tf.Tensor, StepInputs], Forward],
    ) -> None:
        self._task, self._world, self._micro_batches, self._new_forward = task, world, micro_batches, forward
        graphs = self._compute, self._gather, self._differentiate, self._add
        self._graphs = [tf.function(work, autograph=False) for work in graphs]

    def run(self, sent: list[tuple[tf.Tensor, Layout]]) -> list[dict[str, tf.Tensor]]:
        """What tasks.base.ContrastiveTask.sums is given of each of this rank's micro-batches (step_results.flat)."""
        compute, gather, differentiate, add = self._graphs
        everyone = gather([compute(*arguments) for arguments in sent])
        losses, total = [], None
        for k in range(len(sent)):
            loss, gradient = differentiate(everyone, tf.constant(k))
            losses.append(loss)
            total = gradient if total is None else total + gradient
        return [
            {"first_loss": loss, "vector_gradients": gradient}
            for loss, gradient in zip(losses, add(total), strict=True)
        ]

    def _compute(self, tensor: tf.Tensor, layout: Layout) -> dict[str, tf.Tensor]:
        """A micro-batch's vectors, and the arrays that are compared with them."""
        batch, first_row, inputs, _ = unflat(tensor, layout)
        vectors = self._task.vectors(self._new_forward(first_row, inputs), batch)
        return {name: batch[name] for name in self._task.compared} | {"vectors": vectors}

    def _gather(self, parts: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        """The same of all micro-batches of all ranks, [ranks * K, rows, ...] each."""
        everyone = {}
        for name, of_first in parts[0].items():
            gathered = self._world.all_gather(tf.stack([part[name] for part in parts]), f"first_pass/{name}")
            everyone[name] = tf.reshape(gathered, [self._world.size * self._micro_batches, *of_first.shape])
        return everyone

    def _differentiate(self, everyone: dict[str, tf.Tensor], k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss of this rank's micro-batch k, and its gradient by the vectors of all."""
        vectors, place = everyone["vectors"], self._world.rank * self._micro_batches + k
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            arrays = everyone | {"vectors": vectors}
            own = {name: array[place] for name, array in arrays.items()}
            merged = {name: tf.reshape(array, [-1, *array.shape[2:]]) for name, array in arrays.items()}
            loss = self._task.batch_loss(own, merged)
        return loss, tape.gradient(loss, vectors)

    def _add(self, total: tf.Tensor) -> list[tf.Tensor]:
        """The gradients by this rank's vectors, of each micro-batch, from all ranks' losses."""
        begin = self._world.rank * self._micro_batches
        mine = self._world.all_reduce(total, "first_pass/gradients")[begin : begin + self._micro_batches]
        return tf.unstack(mine, self._micro_batches)
