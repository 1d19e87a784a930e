"""A layer with Triton kernels as XLA programs; the architecture's own file beside this one says what is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import ComputePolicy, DropoutState
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
