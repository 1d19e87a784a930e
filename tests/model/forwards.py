"""A forward pass with parameters, and its gradients: what tests of models and of tasks share."""

from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.heads import loss_sums
from bert_horovod.model.weights import cast_weights, parameter_gradients
from bert_horovod.recipe.sections import Model


def tensors(arrays: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Arrays as tensors of their dtypes."""
    return {name: tf.constant(array) for name, array in arrays.items()}


def forward_of(
    model: Model, parameters: dict[str, np.ndarray], dropout: DropoutState | None = None, **policy: Any
) -> Forward:
    """The pass with these settings of ComputePolicy."""
    settings = ComputePolicy(**policy)
    return Forward(model, cast_weights(tensors(parameters), settings.dtype), settings, dropout)


def dropout_of(key: int, first_row: int = 0) -> DropoutState:
    """The dropout stream of a key, from a row on."""
    return DropoutState(tf.constant([key], tf.uint64), tf.constant(first_row, tf.uint64))


def loss_and_gradients(
    forward: Forward, shapes: dict[str, tuple[int, ...]], batch: dict[str, np.ndarray], pairs: bool
) -> tuple[float, dict[str, np.ndarray]]:
    """The summed losses of pre-training, and their gradients by parameter, float64; looked-up rows are added."""
    with tf.GradientTape() as tape:
        tape.watch(forward.weights)
        sums = loss_sums(forward, pairs, tensors(batch))
        loss = sums.mlm_loss + sums.nsp_loss if pairs else sums.mlm_loss
    dense, lookups = parameter_gradients(tape.gradient(loss, forward.weights), shapes)
    gradients = {name: tf.cast(value, tf.float32).numpy().astype(np.float64) for name, value in dense.items()}
    for name, rows in lookups.items():
        np.add.at(gradients[name], rows.indices.numpy(), tf.cast(rows.values, tf.float32).numpy())
    return float(loss), gradients
