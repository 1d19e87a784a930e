"""The encoder of BERT and ALBERT (arXiv 1810.04805, 1909.11942) as functions over a dict of named weights."""

import dataclasses
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState, dropped, random_bytes
from bert_horovod.model.forward import Forward
from bert_horovod.model.gpu_kernels.choice import capability, used
from bert_horovod.model.gpu_kernels.kernel_rows import KernelRows, kernel_rows
from bert_horovod.model.gpu_kernels.layer import kernel_programs
from bert_horovod.model.integers import places_in_rows
from bert_horovod.model.kept import instead, keep, keeping
from bert_horovod.model.layers import attention, dense, gelu, layer_norm, merge_heads, rows_at, split_heads
from bert_horovod.model.lookups import looked_up, looked_up_rows
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    EMBEDDING_MAPPING,
    EMBEDDINGS_NORM,
    INTERMEDIATE,
    OUTPUT,
    OUTPUT_NORM,
    POSITION_EMBEDDINGS,
    TOKEN_TYPE_EMBEDDINGS,
    WORD_EMBEDDINGS,
)
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import QUERY_KEY_VALUE, layer_weights
from bert_horovod.recipe.sections import Model
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
    return [tf.reshape(x, [*batch["input_ids"].shape, forward.model.hidden_size]) for x in states]


def encode_at(forward: Forward, batch: dict[str, tf.Tensor], positions: tf.Tensor) -> tf.Tensor:
    """The last layer's output at some positions of each row; the last layer skips all other positions.

    Args:
      forward, batch: see `encode`.
      positions: int32 [rows, places].

    Returns:
      [rows, places, hidden]: the last output of `encode` at these positions, but with other dropout masks in the last
      layer, because it draws them for [rows, places, ...] instead of [rows, length, ...].
    """
    if positions.shape[1] >= batch["input_ids"].shape[1]:  # nothing to save
        return tf.gather(encode(forward, batch)[-1], positions, batch_dims=1)
    *layers, last = layer_weights(forward.weights, forward.model)
    x = _hidden_layers(forward, batch, layers)[-1]
    places = places_in_rows(positions, batch["input_ids"].shape[1])  # (rows * places,): indices into x
    at_places = tf.gather(batch["sequence_ids"], positions, batch_dims=1)  # (rows, places)
    bias = attention_bias(at_places, batch["sequence_ids"])  # (rows, 1, places, length)
    x = _apply_layer(forward, len(layers), last, x, bias, places)  # (rows * places, hidden)
    return tf.reshape(x, [*positions.shape, forward.model.hidden_size])


def attention_bias(query_ids: tf.Tensor, key_ids: tf.Tensor) -> tf.Tensor:
    """The bias that attention adds to its scores: 0 within a sequence, -1e9 across sequences.

    Args:
      query_ids, key_ids: the sequence_ids of queries, [rows, queries], and of keys, [rows, keys].

    Returns:
      float32 [rows, 1, queries, keys].
    """
    # Floats, because TensorFlow compares int32 on the host, where there is a GPU too.
    query_ids, key_ids = tf.cast(query_ids, tf.float32), tf.cast(key_ids, tf.float32)
    same = tf.equal(query_ids[:, :, None], key_ids[:, None, :])  # (rows, queries, keys)
    return tf.where(same, 0.0, -1e9)[:, None]  # (rows, 1, queries, keys)


def _hidden_layers(
    forward: Forward, batch: dict[str, tf.Tensor], layers: list[dict[str, tf.Tensor]]
) -> list[tf.Tensor]:
    """Outputs of the embeddings and the first layers, [rows * length, hidden] each; `layers`: their cast weights."""
    states = [_embed(forward, batch)]
    sequences = batch["sequence_ids"]
    if forward.dropout is not None and used(forward.model, forward.policy, sequences.shape[1]):
        bias = kernel_rows(sequences)
    else:
        bias = attention_bias(sequences, sequences)
    for number, weights in enumerate(layers):
        states.append(_apply_layer(forward, number, weights, states[-1], bias))
    return states


def _embed(forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    model, weights = forward.model, forward.weights
    x = looked_up_rows(weights[WORD_EMBEDDINGS], batch["input_ids"])  # (rows, length, width)
    x += looked_up(weights[POSITION_EMBEDDINGS], batch["position_ids"])
    x += looked_up(weights[TOKEN_TYPE_EMBEDDINGS], batch["token_type_ids"])
    x = tf.reshape(x, [-1, model.embedding_width])  # (rows * length, width)
    x = layer_norm(x, *forward.affine(EMBEDDINGS_NORM), model.layer_norm_eps, forward.policy)
    shape = [*batch["input_ids"].shape, model.embedding_width]
    x = dropped(x, model.hidden_dropout_prob, random_bytes(shape, model.hidden_dropout_prob, 0, forward.dropout))
    return dense(x, *forward.affine(EMBEDDING_MAPPING)) if model.albert else x  # (rows * length, hidden)


def _apply_layer(
    forward: Forward,
    layer: int,
    weights: dict[str, tf.Tensor],
    x: tf.Tensor,
    bias: tf.Tensor | KernelRows,
    places: tf.Tensor | None = None,
) -> tf.Tensor:
    """Run `_layer` with this layer's weights; the policy chooses XLA and recomputation.

    KernelRows instead of a bias choose the Triton kernels, which give the same result.
    """
    forward = dataclasses.replace(forward, weights=weights)
    # The layer's first dropout site is a tensor, because XLA would compile each layer anew for another Python number.
    site = tf.constant(1 + layer * SITES_PER_LAYER, tf.uint64)
    if forward.policy.xla == "layers":
        return _compiled_layer(forward, x, bias, site, places)
    if forward.policy.recompute != "layer":
        return _layer(forward, x, bias, site, places)

    def recomputed(x: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        return _layer(forward.with_values(tensors), x, bias, site, places)

    return tf.recompute_grad(recomputed)(x, *forward.weights.values())


def _compiled_layer(
    forward: Forward, x: tf.Tensor, bias: tf.Tensor | KernelRows, *others: tf.Tensor | None
) -> tf.Tensor:
    """`_layer` as an XLA program, and its backward as another."""
    others = bias, *others
    if isinstance(bias, KernelRows):
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

    Their last arguments are x, weights, dropout, bias, site, places.
    """

    alone: Callable  # to the layer's output
    forward: Callable  # to the output, and what backward reads beside these arguments
    backward: Callable  # from the output's gradient and what forward kept to the gradients of x and of each weight


@functools.cache
def _layer_programs(model: Model, policy: ComputePolicy) -> _LayerPrograms:
    def layer(
        x: tf.Tensor, weights: dict[str, tf.Tensor], dropout: DropoutState | None, *others: tf.Tensor | None
    ) -> tf.Tensor:
        return _layer(Forward(model, weights, policy, dropout), x, *others)

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


def _layer(forward: Forward, x: tf.Tensor, bias: tf.Tensor, site: tf.Tensor, places: tf.Tensor | None) -> tf.Tensor:
    """One layer: x [rows * length, hidden] to the same shape.

    With `places`, int32 [n], indices of rows of x, the result is [n, hidden]: only queries at these rows.
    """
    model, policy = forward.model, forward.policy
    rows, heads = bias.shape[0], model.num_attention_heads
    weight, offset = forward.affine(QUERY_KEY_VALUE)
    if places is None:
        query, key, value = split_heads(dense(x, weight, offset), rows, 3, heads, policy)  # (rows, heads, length, size)
    else:
        sizes = [model.hidden_size, 2 * model.hidden_size]
        query_weight, weight = tf.split(weight, sizes)
        query_offset, offset = tf.split(offset, sizes)
        key, value = split_heads(dense(x, weight, offset), rows, 2, heads, policy)  # (rows, heads, length, size)
        x = rows_at(x, places)  # (n, hidden)
        # (rows, heads, places, size)
        (query,) = split_heads(dense(x, query_weight, query_offset), rows, 1, heads, policy)
    # (rows, heads, queries, size), where queries are the length or the places of a row
    context = attention(query, key, value, bias, model.attention_probs_dropout_prob, site, forward.dropout, policy)
    attended = dense(keep(merge_heads(context)), *forward.affine(ATTENTION_OUTPUT))  # (n, hidden)
    x = keep(_add_and_norm(forward, x, attended, ATTENTION_NORM, site + 1, rows))
    inner = gelu(dense(x, *forward.affine(INTERMEDIATE)), model.hidden_act == "gelu_new", policy)  # (n, intermediate)
    outer = dense(inner, *forward.affine(OUTPUT))  # (n, hidden)
    return _add_and_norm(forward, x, outer, OUTPUT_NORM, site + 2, rows)


def _add_and_norm(
    forward: Forward, x: tf.Tensor, branch: tf.Tensor, norm: str, site: tf.Tensor, rows: int
) -> tf.Tensor:
    model, rate = forward.model, forward.model.hidden_dropout_prob
    draws = random_bytes([rows, x.shape[0] // rows, model.hidden_size], rate, site, forward.dropout)
    if draws is not None:
        draws = tf.reshape(draws, x.shape)  # (n, hidden)
    return layer_norm(x, *forward.affine(norm), model.layer_norm_eps, forward.policy, branch, rate, draws)
