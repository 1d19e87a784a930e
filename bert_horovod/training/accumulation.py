"""Gradients of a step's micro-batches are added up in float32, in variables of their own."""

from __future__ import annotations

from bert_horovod.exchange.base import Gradients, Lookups
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu


class Accumulators:
    """The sums of gradients of all micro-batches of a step but the last.

    The first micro-batch of a step overwrites them, so that nothing has to set them to zero.

    Args:
        shapes: of the trained parameters, by name.
        in_place: whether one compiled program changes all of them where they are.
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
