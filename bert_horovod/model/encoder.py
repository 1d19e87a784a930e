"""The encoder as functions over a dict of named weights: the embeddings and layers of the model's architecture."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward, instead, keeping
from bert_horovod.model.gpu_kernels.choice import capability, used
from bert_horovod.model.gpu_kernels.programs import kernel_programs
from bert_horovod.model.lookups import places_in_rows
from bert_horovod.model.weights import layer_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

# Dropout sites: 0 is the embeddings' output; each layer has its attention probabilities, attention output and
# feed-forward output.
SITES_PER_LAYER = 3


def encode(forward: Forward, batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """Hidden states of a micro-batch: the output of the embeddings and of each layer.

    Args:
        forward: sizes, cast weights, policy, dropout.
        batch: int32 [rows, length] each: input_ids, token_type_ids, position_ids, and sequence_ids (0 is padding;
            a token attends only to tokens of the same number, so a row may hold several sequences).

    Returns:
        num_hidden_layers + 1 tensors of the policy's dtype, [rows, length, hidden].
    """
    states = _hidden_layers(forward, batch, layer_weights(forward.weights, forward.model))
    states[-1] = family_of(forward.model).finish(forward, states[-1])
    return [tf.reshape(x, [*batch["input_ids"].shape, forward.model.hidden_size]) for x in states]


def encode_at(forward: Forward, batch: dict[str, tf.Tensor], positions: tf.Tensor) -> tf.Tensor:
    """The last layer's output at some positions, int32 [rows, places]; the last layer skips all other positions.

    [rows, places, hidden]: the last output of `encode` at these positions, but with other dropout masks in the last
    layer, because it draws them for [rows, places, ...] instead of [rows, length, ...].
    """
    if positions.shape[1] >= batch["input_ids"].shape[1]:  # nothing to save
        return tf.gather(encode(forward, batch)[-1], positions, batch_dims=1)
    *layers, last = layer_weights(forward.weights, forward.model)
    x = _hidden_layers(forward, batch, layers)[-1]
    places = places_in_rows(positions, batch["input_ids"].shape[1])  # (rows * places,): indices into x
    family = family_of(forward.model)
    surroundings = family.surroundings(forward.model, batch, positions)[-1]
    x = _apply_layer(forward, len(layers), last, x, surroundings, places)  # (rows * places, hidden)
    return tf.reshape(family.finish(forward, x), [*positions.shape, forward.model.hidden_size])


def _hidden_layers(
    forward: Forward, batch: dict[str, tf.Tensor], layers: list[dict[str, tf.Tensor]]
) -> list[tf.Tensor]:
    """Outputs of the embeddings and the first layers, [rows * length, hidden] each; `layers`: their cast weights."""
    family, model, sequences = family_of(forward.model), forward.model, batch["sequence_ids"]
    states = [family.layers.embed(forward, batch)]
    if forward.dropout is not None and used(model, forward.policy, sequences.shape[1]):
        surroundings = family.kernels.surroundings(model, batch)
    else:
        surroundings = family.surroundings(model, batch)
    for number, weights in enumerate(layers):
        states.append(_apply_layer(forward, number, weights, states[-1], surroundings[number]))
    return states


def _apply_layer(
    forward: Forward,
    layer: int,
    weights: dict[str, tf.Tensor],
    x: tf.Tensor,
    surroundings: Any,
    places: tf.Tensor | None = None,
) -> tf.Tensor:
    """Run the architecture's layer with this layer's weights; the policy chooses XLA and recomputation.

    `surroundings`: the layer's, of Family.surroundings. Rows of the family's kernels in their place choose these, which
    give the same result.
    """
    run_layer = family_of(forward.model).layers.layer
    forward = dataclasses.replace(forward, weights=weights)
    # The layer's first dropout site is a tensor, because XLA would compile each layer anew for another Python number.
    site = tf.constant(1 + layer * SITES_PER_LAYER, tf.uint64)
    if forward.policy.xla == "layers":
        return _compiled_layer(forward, x, surroundings, site, places)
    if forward.policy.recompute != "layer":
        return run_layer(forward, x, surroundings, site, places)

    def recomputed(x: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        return run_layer(forward.with_values(tensors), x, surroundings, site, places)

    return tf.recompute_grad(recomputed)(x, *forward.weights.values())


def _compiled_layer(forward: Forward, x: tf.Tensor, surroundings: Any, *others: tf.Tensor | None) -> tf.Tensor:
    """The architecture's layer as an XLA program, and its backward as another."""
    others = surroundings, *others
    kernels = family_of(forward.model).kernels
    if kernels and isinstance(surroundings, kernels.Rows):
        programs = kernel_programs(forward.model, forward.policy, capability())
    else:
        programs = _layer_programs(forward.model, forward.policy)
    if forward.dropout is None:  # without backward: nothing is kept for it
        return programs.alone(x, forward.weights, None, *others)

    @tf.custom_gradient
    def apply(x: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # Without tf.stop_gradient the tape would keep what the own gradient of TensorFlow reads, too.
        x, *values = map(tf.stop_gradient, (x, *values))
        arguments = x, forward.with_values(values).weights, forward.dropout, *others
        y, kept = programs.forward(*arguments)
        return y, lambda dy: programs.backward(dy, kept, *arguments)

    return apply(x, *forward.weights.values())


class _LayerPrograms(NamedTuple):
    """XLA programs, each one for all layers of equal sizes.

    Their last arguments are x, weights, dropout, surroundings, site, places.
    """

    alone: Callable  # to the layer's output
    forward: Callable  # to the output, and what backward reads beside these arguments
    backward: Callable  # from the output's gradient and what forward kept to the gradients of x and of each weight


@functools.cache
def _layer_programs(model: Model, policy: ComputePolicy) -> _LayerPrograms:
    run_layer = family_of(model).layers.layer

    def layer(
        x: tf.Tensor, weights: dict[str, tf.Tensor], dropout: DropoutState | None, *others: tf.Tensor | None
    ) -> tf.Tensor:
        return run_layer(Forward(model, weights, policy, dropout), x, *others)

    def forward_layer(*arguments) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with keeping() as kept:
            y = layer(*arguments)
        return y, [] if policy.recompute == "layer" else kept

    def backward_layer(dy: tf.Tensor, kept: list[tf.Tensor], x: tf.Tensor, weights: dict[str, tf.Tensor], *others):
        watched = [x, *weights.values()]
        with instead(kept) if kept else nullcontext(), tf.GradientTape() as tape:
            tape.watch(watched)
            y = layer(x, weights, *others)
        return tape.gradient(y, watched, dy)

    return _LayerPrograms(compiled(layer), compiled(forward_layer), compiled(backward_layer))
