"""What a ModernBERT computes (arXiv 2412.13663): embeddings, a layer and the last LayerNorm; encoder.py runs them.

In rows that are long beside the sliding window, a layer with such a window computes scores in blocks of `reach`
queries: each with the keys of its own block and of the two beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.forward import ComputePolicy, Forward, keep, random_bytes
from bert_horovod.model.layers import (
    add,
    attention,
    attention_bias,
    dense,
    geglu,
    layer_norm,
    merge_heads,
    rotated,
    rows_at,
    sequences_at,
    split_heads,
)
from bert_horovod.model.lookups import looked_up_rows
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    EMBEDDINGS_NORM,
    FINAL_NORM,
    INTERMEDIATE,
    OUTPUT,
    OUTPUT_NORM,
    QUERY_KEY_VALUE,
    WORD_EMBEDDINGS,
)
from bert_horovod.runtime import lazy_tensorflow as tf


class Turn(NamedTuple):
    """Cosines and sines of rotary angles, float32 [rows, 1, length, head size / 2] each."""

    cosines: tf.Tensor
    sines: tf.Tensor


class Surroundings(NamedTuple):
    """What a layer reads beside its input."""

    bias: tf.Tensor  # float32 [rows * blocks, 1, queries of a block, its keys]; with one block all queries and keys
    queries: Turn  # of the queries' positions
    keys: Turn  # of all positions


def surroundings(
    model: ModernBertModel, batch: dict[str, tf.Tensor], positions: tf.Tensor | None = None
) -> list[Surroundings]:
    """See `Family.surroundings`. Positions count from 0 in each sequence; a window ends where its sequence ends."""
    places, sequences = batch["position_ids"], batch["sequence_ids"]
    queries = sequences_at(batch, positions)
    query_places = places if positions is None else tf.gather(places, positions, batch_dims=1)
    kinds = {}
    for layer in range(min(model.num_hidden_layers, model.global_attn_every_n_layers + 1)):
        fully = model.attends_fully(layer)
        if fully in kinds:
            continue
        if fully:
            bias = attention_bias(queries, sequences)
        elif positions is None and model.blocks(sequences.shape[1]) > 1:
            bias = _bias_of_blocks(sequences, model.reach)
        else:
            bias = attention_bias(queries, sequences) + _window_bias(query_places, places, model.reach)
        keys = turn(model, places, model.theta(layer))
        kinds[fully] = Surroundings(
            bias, keys if positions is None else turn(model, query_places, model.theta(layer)), keys
        )
    return [kinds[model.attends_fully(layer)] for layer in range(model.num_hidden_layers)]


def embed(forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """The output of the embeddings, [rows * length, hidden] of the policy's dtype; `batch` as in encoder.encode."""
    x = looked_up_rows(forward.weights[WORD_EMBEDDINGS], batch["input_ids"])  # (rows, length, hidden)
    return _norm(forward, EMBEDDINGS_NORM, tf.reshape(x, [-1, forward.model.hidden_size]))


def layer(forward: Forward, x: tf.Tensor, around: Surroundings, site: tf.Tensor, places: tf.Tensor | None) -> tf.Tensor:
    """One layer; arguments as for bert_layers.layer, but `around` is what it reads beside x."""
    model, policy, heads = forward.model, forward.policy, forward.model.num_attention_heads
    rows = around.keys.cosines.shape[0]
    normal = x  # the first layer has no LayerNorm here
    if f"{ATTENTION_NORM}.weight" in forward.weights:
        normal = keep(_norm(forward, ATTENTION_NORM, x))
    weight, _ = forward.affine(QUERY_KEY_VALUE)
    if places is None:
        query, key, value = split_heads(dense(normal, weight), rows, 3, heads, policy)  # (rows, heads, length, size)
    else:
        query_weight, weight = tf.split(weight, [model.hidden_size, 2 * model.hidden_size])
        key, value = split_heads(dense(normal, weight), rows, 2, heads, policy)
        x = rows_at(x, places)  # (n, hidden)
        (query,) = split_heads(dense(keep(rows_at(normal, places)), query_weight), rows, 1, heads, policy)
    query, key = rotated(query, *around.queries, policy), rotated(key, *around.keys, policy)
    context = _attend(query, key, value, around.bias, policy)  # (rows, heads, queries, size)
    attended = dense(keep(merge_heads(context)), *forward.affine(ATTENTION_OUTPUT))  # (n, hidden)
    rate = model.attention_output_dropout_prob
    draws = random_bytes([rows, x.shape[0] // rows, model.hidden_size], rate, site + 1, forward.dropout)
    x = add(x, attended, rate, None if draws is None else tf.reshape(draws, x.shape), policy)
    inner = geglu(dense(keep(_norm(forward, OUTPUT_NORM, x)), *forward.affine(INTERMEDIATE)), policy)
    return x + dense(inner, *forward.affine(OUTPUT))


def finish(forward: Forward, x: tf.Tensor) -> tf.Tensor:
    """The last LayerNorm, [n, hidden]."""
    return _norm(forward, FINAL_NORM, x)


def _norm(forward: Forward, name: str, x: tf.Tensor) -> tf.Tensor:
    return layer_norm(x, *forward.affine(name), forward.model.layer_norm_eps, forward.policy)


def _attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, policy: ComputePolicy) -> tf.Tensor:
    """Attention, in blocks if the bias is of blocks: [rows, heads, queries, size]."""
    rows, heads, length, size = query.shape
    if bias.shape[0] > rows:
        reach = bias.shape[2]
        query, key, value = _blocks(query, reach), _with_neighbours(key, reach), _with_neighbours(value, reach)
    context = attention(query, key, value, bias, 0.0, 0, None, policy)
    if bias.shape[0] == rows:
        return context
    context = tf.reshape(context, [rows, -1, heads, reach, size])
    context = tf.reshape(tf.transpose(context, [0, 2, 1, 3, 4]), [rows, heads, -1, size])
    return context[:, :, :length]


def _blocks(x: tf.Tensor, reach: int) -> tf.Tensor:
    """[rows, heads, length, size] to [rows * blocks, heads, reach, size]; zeros fill the last block."""
    rows, heads, length, size = x.shape
    x = tf.pad(x, [[0, 0], [0, 0], [0, -length % reach], [0, 0]])
    x = tf.transpose(tf.reshape(x, [rows, heads, -1, reach, size]), [0, 2, 1, 3, 4])
    return tf.reshape(x, [-1, heads, reach, size])


def _with_neighbours(x: tf.Tensor, reach: int) -> tf.Tensor:
    """[rows, heads, length, size] to [rows * blocks, heads, 3 reach, size]: each block between its two neighbours."""
    rows, heads, length, size = x.shape
    x = tf.pad(x, [[0, 0], [0, 0], [reach, reach + -length % reach], [0, 0]])
    x = tf.transpose(tf.reshape(x, [rows, heads, -1, reach, size]), [0, 2, 1, 3, 4])  # (rows, blocks + 2, heads, ...)
    x = tf.concat([x[:, :-2], x[:, 1:-1], x[:, 2:]], 3)  # (rows, blocks, heads, 3 reach, size)
    return tf.reshape(x, [-1, heads, 3 * reach, size])


def _bias_of_blocks(sequences: tf.Tensor, reach: int) -> tf.Tensor:
    """The attention bias of a sliding window in blocks: float32 [rows * blocks, 1, reach, 3 reach]."""
    ids = tf.cast(sequences, tf.float32)[:, None, :, None] + 1.0  # what is beside a row becomes 0, like no token
    queries, keys = _blocks(ids, reach)[..., 0], _with_neighbours(ids, reach)[..., 0]
    near = np.abs(np.arange(3 * reach) - reach - np.arange(reach)[:, None]) <= reach  # (reach, 3 reach)
    return tf.where(tf.equal(queries[..., None], keys[:, :, None]) & near, 0.0, -1e9)


def _window_bias(query_places: tf.Tensor, places: tf.Tensor, reach: int) -> tf.Tensor:
    """0 where a key is at most `reach` places away in its sequence, else -1e9: float32 [rows, 1, queries, keys]."""
    query_places, places = tf.cast(query_places, tf.float32), tf.cast(places, tf.float32)
    near = tf.abs(query_places[:, :, None] - places[:, None]) <= float(reach)
    return tf.where(near, 0.0, -1e9)[:, None]


def turn(model: ModernBertModel, places: tf.Tensor, theta: float) -> Turn:
    """The rotary angles place * theta^(-2 j / head size) of int32 [rows, length], in float32 as in transformers."""
    size = model.hidden_size // model.num_attention_heads
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies = np.float32(1) / np.float32(theta) ** exponents
    angles = tf.cast(places, tf.float32)[:, None, :, None] * frequencies
    return Turn(tf.cos(angles), tf.sin(angles))
