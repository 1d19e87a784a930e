"""A layer with Triton kernels as XLA programs, which the architecture's own file beside this one computes.

Their first calls come before training needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import ComputePolicy, DropoutState
from bert_horovod.model.gpu_kernels.call import with_lookups
from bert_horovod.model.gpu_kernels.choice import capability, give_up_kernels, used
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled


class KernelPrograms(NamedTuple):
    """XLA programs, each one for all layers of equal sizes.

    Their last arguments are x, weights, dropout, rows, site and None, as those of the programs in encoder.py.
    """

    forward: Callable  # to the output, and what backward reads beside these arguments
    backward: Callable  # from the output's gradient and what forward kept to the gradients of x and of each weight


@functools.cache
def kernel_programs(model: Model, policy: ComputePolicy, capability: tuple[int, int]) -> KernelPrograms:
    """A layer's programs; `capability` is the GPU's."""
    kernels = family_of(model).kernels

    def forward_layer(
        x: tf.Tensor, weights: dict[str, tf.Tensor], dropout: DropoutState, rows: Any, site: tf.Tensor, _: None
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        y, kept = kernels.forward(kernels.KernelLayer(model, dropout, rows, site, capability), x, weights)
        return y, () if policy.recompute == "layer" else kept

    def backward_layer(
        dy: tf.Tensor,
        kept: tuple[tf.Tensor, ...],
        x: tf.Tensor,
        weights: dict[str, tf.Tensor],
        dropout: DropoutState,
        rows: Any,
        site: tf.Tensor,
        _: None,
    ) -> list[tf.Tensor]:
        layer = kernels.KernelLayer(model, dropout, rows, site, capability)
        _, kept = (None, kernels.Kept(*kept)) if kept else kernels.forward(layer, x, weights)
        return kernels.backward(layer, dy, kept, x, weights)

    return KernelPrograms(compiled(forward_layer), compiled(backward_layer))


def try_layers(
    model: Model, policy: ComputePolicy, weights: list[dict[str, tf.Tensor]], rows: int, length: int
) -> str | None:
    """Compile and run each kind of layer, forward and backward, if the kernels are to be used for this shape.

    If that fails, the layers of this model and length are computed without kernels from now on.

    Args:
        model, policy: of the run.
        weights: the layers' cast weights; see weights.layer_weights.
        rows, length: of a micro-batch.

    Returns:
        What failed, one line; None if nothing did.
    """

    def run() -> tf.Tensor:
        programs = kernel_programs(model, policy, capability())
        x = tf.zeros([rows * length, model.hidden_size], policy.dtype)
        dropout = DropoutState(tf.zeros([1], tf.uint64), tf.constant(0, tf.uint64))
        ones = tf.ones([rows, length], tf.int32)
        surroundings = family_of(model).kernels.surroundings(model, {"sequence_ids": ones, "position_ids": ones})
        # One layer of each program: they differ by parameters and by numbers that are no tensors.
        kinds = {
            (*of_layer, *(each for each in around if not tf.is_tensor(each))): (of_layer, around)
            for of_layer, around in zip(weights, surroundings, strict=True)
        }
        for of_layer, around in kinds.values():
            arguments = x, of_layer, dropout, around, tf.constant(1, tf.uint64), None
            y, kept = programs.forward(*arguments)
            dx = programs.backward(y, kept, *arguments)[0]
        return dx

    failure = _failure(run) if used(model, policy, length) else None
    if failure:
        give_up_kernels(model, length)
    return failure


def try_table(entries: int, width: int, lookups: int, dtype: tf.DType) -> str | None:
    """Compile and run table.with_lookups for these sizes; returns what failed, one line, or None."""
    found = tf.IndexedSlices(tf.zeros([lookups, width]), tf.zeros([lookups], tf.int32))
    return _failure(lambda: with_lookups(tf.zeros([entries, width], dtype), found, dtype))


def _failure(run: Callable[[], tf.Tensor]) -> str | None:
    try:
        tf.reduce_sum(tf.cast(run(), tf.float32)).numpy()  # waits until the device has done it
    except (tf.errors.OpError, ValueError) as error:
        return str(error).strip().partition("\n")[0][:300]
    return None
