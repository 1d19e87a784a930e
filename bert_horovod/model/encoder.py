"""BERT's encoder (Devlin et al. 2019, arXiv 1810.04805) as functions over a dict of named parameters.

Names and layout of parameters ([out, in] for weights) are Hugging Face's, so that a checkpoint is a dump of the dict.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState, dropped, random_bytes
from bert_horovod.model.layers import attention, dense, gelu, layer_norm, merge_heads, split_heads
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import layer_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime.xla import compiled

SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output; site 0 is the embeddings'


def encode(
    weights: dict[str, tf.Tensor],
    model: Model,
    batch: dict[str, tf.Tensor],
    compute: ComputePolicy,
    state: DropoutState | None = None,
) -> list[tf.Tensor]:
    """Hidden states of a micro-batch: the embeddings' and each layer's output.

    Args:
      weights: of `cast_weights`.
      model: the sizes.
      batch: int32 [rows, length] each: input_ids, token_type_ids, position_ids, and sequence_ids (0 is padding;
      tokens attend to those of the same number alone, so a row may hold several sequences).
      compute: how.
      state: what dropout masks are made of; None outside training.

    Returns:
      num_hidden_layers + 1 tensors of the compute dtype, [rows, length, hidden].
    """
    states = _hidden_layers(weights, model, batch, compute, state, model.num_hidden_layers)
    return [tf.reshape(x, [*batch["input_ids"].shape, model.hidden_size]) for x in states]


def encode_at(
    weights: dict[str, tf.Tensor],
    model: Model,
    batch: dict[str, tf.Tensor],
    positions: tf.Tensor,
    compute: ComputePolicy,
    state: DropoutState | None = None,
) -> tf.Tensor:
    """The last layer's output at some positions of each row, and no work of that layer on the others.

    Args:
      positions: int32 [rows, places].
      others: see `encode`.

    Returns:
      [rows, places, hidden], what `encode` gives there; masks of the last layer's dropout are drawn by place.
    """
    if positions.shape[1] >= batch["input_ids"].shape[1]:  # nothing to save
        return tf.gather(encode(weights, model, batch, compute, state)[-1], positions, batch_dims=1)
    last = model.num_hidden_layers - 1
    x = _hidden_layers(weights, model, batch, compute, state, last)[-1]
    rows, length = batch["input_ids"].shape
    places = positions + length * tf.range(rows)[:, None]
    bias = attention_bias(tf.gather(batch["sequence_ids"], positions, batch_dims=1), batch["sequence_ids"])
    layer = _layer_function(model, compute)
    x = layer(x, layer_weights(weights, last), bias, _site(last), state, tf.reshape(places, [-1]))
    return tf.reshape(x, [*positions.shape, model.hidden_size])


def attention_bias(query_ids: tf.Tensor, key_ids: tf.Tensor) -> tf.Tensor:
    """What is added to scores: 0 within a sequence, -1e9 across sequences; float32 [rows, 1, queries, keys]."""
    same = tf.equal(query_ids[:, :, None], key_ids[:, None, :])
    return tf.where(same, 0.0, -1e9)[:, None]


def _hidden_layers(
    weights: dict[str, tf.Tensor],
    model: Model,
    batch: dict[str, tf.Tensor],
    compute: ComputePolicy,
    state: DropoutState | None,
    count: int,
) -> list[tf.Tensor]:
    """The embeddings' and the first layers' outputs, [rows * length, hidden] each."""
    states = [_embed(weights, model, batch, compute, state)]
    bias = attention_bias(batch["sequence_ids"], batch["sequence_ids"])
    layer = _layer_function(model, compute)
    for i in range(count):
        states.append(layer(states[-1], layer_weights(weights, i), bias, _site(i), state, None))
    return states


def _embed(
    weights: dict[str, tf.Tensor],
    model: Model,
    batch: dict[str, tf.Tensor],
    compute: ComputePolicy,
    state: DropoutState | None,
) -> tf.Tensor:
    prefix = "bert.embeddings"
    x = tf.gather(weights[f"{prefix}.word_embeddings.weight"], batch["input_ids"])  # (rows, length, hidden)
    x += tf.gather(weights[f"{prefix}.position_embeddings.weight"], batch["position_ids"])
    x += tf.gather(weights[f"{prefix}.token_type_embeddings.weight"], batch["token_type_ids"])
    norm = (weights[f"{prefix}.LayerNorm.weight"], weights[f"{prefix}.LayerNorm.bias"])
    x = layer_norm(tf.reshape(x, [-1, model.hidden_size]), *norm, model.layer_norm_eps, compute)
    shape = [*batch["input_ids"].shape, model.hidden_size]
    return dropped(x, model.hidden_dropout_prob, random_bytes(shape, model.hidden_dropout_prob, 0, state))


def _site(layer: int) -> tf.Tensor:
    """The number of a layer's first dropout; a tensor, so that all layers are one program."""
    return tf.constant(1 + layer * SITES_PER_LAYER, tf.uint64)


def _layer_function(model: Model, compute: ComputePolicy) -> Callable:
    """`_layer` for these sizes: whole, compiled or recomputed, as `compute` says."""

    def layer(*arguments) -> tf.Tensor:
        return _layer(model, compute, *arguments)

    if compute.xla == "layers":
        layer = _compiled_layer(model, compute)
    if compute.recompute == "layer":
        layer = _recomputed(layer)
    return layer


@functools.cache
def _compiled_layer(model: Model, compute: ComputePolicy) -> Callable:
    """One program for all equal layers."""
    return compiled(functools.partial(_layer, model, compute))


def _recomputed(layer: Callable) -> Callable:
    """A layer of which nothing is kept for backward but its input."""

    def call(x, weights, bias, site, state, places) -> tf.Tensor:
        names = list(weights)
        forward = tf.recompute_grad(
            lambda x, *values: layer(x, dict(zip(names, values, strict=True)), bias, site, state, places)
        )
        return forward(x, *weights.values())

    return call


def _layer(
    model: Model,
    compute: ComputePolicy,
    x: tf.Tensor,
    weights: dict[str, tf.Tensor],
    bias: tf.Tensor,
    site: tf.Tensor,
    state: DropoutState | None,
    places: tf.Tensor | None,
) -> tf.Tensor:
    """One layer on x [rows * length, hidden]; with `places` int32 [n] in x only those come out: [n, hidden]."""
    rows, heads = bias.shape[0], model.num_attention_heads
    if places is None:
        qkv = dense(x, weights["attention.self.qkv.weight"], weights["attention.self.qkv.bias"])
        query, key, value = split_heads(qkv, rows, 3, heads, compute)
    else:
        sizes = [model.hidden_size, 2 * model.hidden_size]
        query_weight, weight = tf.split(weights["attention.self.qkv.weight"], sizes)
        query_offset, offset = tf.split(weights["attention.self.qkv.bias"], sizes)
        key, value = split_heads(dense(x, weight, offset), rows, 2, heads, compute)
        x = tf.gather(x, places)
        (query,) = split_heads(dense(x, query_weight, query_offset), rows, 1, heads, compute)
    context = attention(query, key, value, bias, model.attention_probs_dropout_prob, site, state, compute)
    attended = dense(merge_heads(context), *_pair(weights, "attention.output.dense"))
    x = _add_and_norm(model, compute, x, attended, weights, "attention.output", site + 1, state, rows)
    inner = gelu(dense(x, *_pair(weights, "intermediate.dense")), model.hidden_act == "gelu_new", compute)
    outer = dense(inner, *_pair(weights, "output.dense"))
    return _add_and_norm(model, compute, x, outer, weights, "output", site + 2, state, rows)


def _add_and_norm(model, compute, x, branch, weights, name, site, state, rows) -> tf.Tensor:
    rate = model.hidden_dropout_prob
    draws = random_bytes([rows, x.shape[0] // rows, model.hidden_size], rate, site, state)
    if draws is not None:
        draws = tf.reshape(draws, x.shape)
    return layer_norm(x, *_pair(weights, f"{name}.LayerNorm"), model.layer_norm_eps, compute, branch, rate, draws)


def _pair(weights: dict[str, tf.Tensor], name: str) -> tuple[tf.Tensor, tf.Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]
