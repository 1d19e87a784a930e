"""What BERT and ALBERT compute (arXiv 1810.04805, 1909.11942): embeddings, and a layer; encoder.py runs them."""

from __future__ import annotations

from bert_horovod.model.forward import Forward, dropped, keep, random_bytes
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
    QUERY_KEY_VALUE,
    TOKEN_TYPE_EMBEDDINGS,
    WORD_EMBEDDINGS,
)
from bert_horovod.runtime import lazy_tensorflow as tf


def embed(forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """The output of the embeddings, [rows * length, hidden] of the policy's dtype; `batch` as in encoder.encode."""
    model, weights = forward.model, forward.weights
    x = looked_up_rows(weights[WORD_EMBEDDINGS], batch["input_ids"])  # (rows, length, width)
    x += looked_up(weights[POSITION_EMBEDDINGS], batch["position_ids"])
    x += looked_up(weights[TOKEN_TYPE_EMBEDDINGS], batch["token_type_ids"])
    x = tf.reshape(x, [-1, model.embedding_width])  # (rows * length, width)
    x = layer_norm(x, *forward.affine(EMBEDDINGS_NORM), model.layer_norm_eps, forward.policy)
    shape = [*batch["input_ids"].shape, model.embedding_width]
    x = dropped(x, model.hidden_dropout_prob, random_bytes(shape, model.hidden_dropout_prob, 0, forward.dropout))
    mapped = f"{EMBEDDING_MAPPING}.weight" in weights
    return dense(x, *forward.affine(EMBEDDING_MAPPING)) if mapped else x  # (rows * length, hidden)


def layer(forward: Forward, x: tf.Tensor, bias: tf.Tensor, site: tf.Tensor, places: tf.Tensor | None) -> tf.Tensor:
    """One layer: x [rows * length, hidden] to the same shape.

    Args:
        forward: `weights` are those of this layer, without its prefix.
        x: the output of the layer below.
        bias: see layers.attention_bias.
        site: uint64 scalar, the first of the layer's encoder.SITES_PER_LAYER dropout sites.
        places: int32 [n], indices of rows of x; with them the result is [n, hidden], only queries at these rows.
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
