"""ModernBERT written as in a textbook (arXiv 2412.13663), for readers and for export; see model/plain.py.

    x = LN(words)
    x = x + Wo attention(LN(x));  x = x + Wo (gelu(a) g), where (a, g) = Wi LN(x)        in each layer
    LN(x)                                                                                at the end

The first layer's attention reads x itself. Queries and keys are turned by their positions.
"""

from __future__ import annotations

from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
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
    layer_prefix,
)
from bert_horovod.model.plain import Parameters, attention_bias, attention_weights, dense, gelu, layer_norm, transformed
from bert_horovod.runtime import lazy_tensorflow as tf


def encode(model: ModernBertModel, parameters: Parameters, batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """See plain.encode; the last LayerNorm is in the last hidden state."""
    sequences, places = batch["sequence_ids"], batch["position_ids"]
    fully = attention_bias(sequences)
    near = tf.abs(places[:, None, :, None] - places[:, None, None, :]) <= model.reach
    nearby = tf.where(near, fully, -1e9)  # (rows, 1, queries, keys), as `fully`
    x = tf.gather(parameters[WORD_EMBEDDINGS], batch["input_ids"])
    x = layer_norm(model, parameters, EMBEDDINGS_NORM, tf.reshape(x, [-1, model.hidden_size]))
    states = [x]  # (rows * length, hidden)
    for i in range(model.num_hidden_layers):
        prefix, bias = layer_prefix(i), fully if model.attends_fully(i) else nearby
        normal = layer_norm(model, parameters, prefix + ATTENTION_NORM, x) if i else x
        x += _attend(model, parameters, prefix, normal, bias, _angles(model, places, model.theta(i)))
        normal = layer_norm(model, parameters, prefix + OUTPUT_NORM, x)
        inner, gate = tf.split(dense(parameters, prefix + INTERMEDIATE, normal), 2, -1)
        x += dense(parameters, prefix + OUTPUT, gelu(model.hidden_act, inner) * gate)
        states.append(x)
    states[-1] = layer_norm(model, parameters, FINAL_NORM, x)
    rows, length = tf.unstack(tf.shape(sequences))
    return [tf.reshape(x, [rows, length, model.hidden_size]) for x in states]


def text_features(model: ModernBertModel, parameters: Parameters, hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """What a classifier reads: [rows, length, hidden] to [rows, hidden]; `mask`: 1 at tokens, else 0."""
    features = hidden[:, 0]
    if model.classifier_pooling == "mean":
        real = tf.cast(mask, tf.float32)[..., None]  # (rows, length, 1)
        features = tf.math.divide_no_nan(tf.reduce_sum(hidden * real, 1), tf.reduce_sum(real, 1))
    return transformed(model, parameters, features)


def _attend(
    model: ModernBertModel, parameters: Parameters, prefix: str, x: tf.Tensor, bias: tf.Tensor, angles: tf.Tensor
) -> tf.Tensor:
    """Multi-head attention of x [rows * length, hidden], as plain.py has it, with turned queries and keys."""
    rows, _, length, _ = tf.unstack(tf.shape(bias))
    heads, size = model.num_attention_heads, model.hidden_size // model.num_attention_heads
    parts = tf.reshape(dense(parameters, prefix + QUERY_KEY_VALUE, x), [rows, length, 3, heads, size])
    query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]), num=3)  # (rows, heads, length, size)
    weights = attention_weights(_turned(query, angles), _turned(key, angles), bias)  # (rows, heads, queries, keys)
    context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])  # (rows, length, heads, size)
    return dense(parameters, prefix + ATTENTION_OUTPUT, tf.reshape(context, [-1, model.hidden_size]))


def _angles(model: ModernBertModel, places: tf.Tensor, theta: float) -> tf.Tensor:
    """The rotary angles (Su et al. 2021, arXiv 2104.09864), float32 [rows, 1, length, head size / 2]."""
    size = model.hidden_size // model.num_attention_heads
    frequencies = theta ** -(tf.range(0, size, 2, dtype=tf.float32) / size)
    return tf.cast(places, tf.float32)[:, None, :, None] * frequencies


def _turned(x: tf.Tensor, angles: tf.Tensor) -> tf.Tensor:
    """Turn each pair (x[j], x[j + head size / 2]) by its angle."""
    first, second = tf.split(tf.cast(x, tf.float32), 2, -1)
    cosine, sine = tf.cos(angles), tf.sin(angles)
    return tf.cast(tf.concat([first * cosine - second * sine, second * cosine + first * sine], -1), x.dtype)
