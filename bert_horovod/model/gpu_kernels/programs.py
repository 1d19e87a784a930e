"""A layer with Triton kernels as XLA programs, which the architecture's own file beside this one computes.

Their first calls come before training needs them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_horovod.errors import RunError
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


def try_kernels(
    setting: str,
    model: Model,
    policy: ComputePolicy,
    weights: list[dict[str, tf.Tensor]],
    table: tuple[int, int] | None,
    rows: int,
    length: int,
) -> bool:
    """Whether each kind of layer compiles and runs, forward and backward, if the kernels are to be used for this shape.

    If not, it says so, and the layers of this model and length are computed without kernels from now on; with the
    `setting` "triton" of execution.kernels it raises RunError. `weights`: cast ones (weights.layer_weights). `table`:
    the shape of the word embeddings, if a kernel adds looked-up rows to their gradient. `rows`: of a micro-batch.
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
    elif table:
        found = tf.IndexedSlices(tf.zeros([rows * length, table[1]]), tf.zeros([rows * length], tf.int32))
        failure = _failure(lambda: with_lookups(tf.zeros(table, policy.dtype), found, policy.dtype))
    if failure and setting == "triton":
        raise RunError(f'the Triton kernels failed: {failure}; execution.kernels = "xla" does without them')
    if failure:
        print(
            f"bert-horovod: warning: the Triton kernels failed for sequence length {length} ({failure}); this run goes "
            'on without them, as with execution.kernels = "xla"',
            file=sys.stderr,
            flush=True,
        )
    return not failure


def _failure(run: Callable[[], tf.Tensor]) -> str | None:
    try:
        tf.reduce_sum(tf.cast(run(), tf.float32)).numpy()  # waits until the device has done it
    except (tf.errors.OpError, ValueError) as error:
        return str(error).strip().partition("\n")[0][:300]
    return None
