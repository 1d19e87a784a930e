"""BERT and ALBERT written as in a textbook (arXiv 1810.04805, 1909.11942), for readers, export and sentence vectors.

No dropout, only TensorFlow's own operations and gradients, which it fuses on a CPU. The number of rows and the length
may be unknown when a graph is traced. Training uses encoder.py and heads.py: they compute the same numbers up to
rounding, but join matrix products, fuse the elementwise operations between them and keep less for backward.

`parameters` are tensors by the names of parameters.py, as in a checkpoint; all are float32, or all narrower: then
LayerNorm alone computes in float32.
"""

from __future__ import annotations

import math

from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    CLASSIFIER,
    DECODER_BIAS,
    EMBEDDING_MAPPING,
    EMBEDDINGS_NORM,
    INTERMEDIATE,
    KEY,
    LABEL_OUTPUT,
    LABEL_QUERY,
    OUTPUT,
    OUTPUT_NORM,
    PAIR_CLASSIFIER,
    POOLER,
    POSITION_EMBEDDINGS,
    QUERY,
    SPAN_HEAD,
    TOKEN_TYPE_EMBEDDINGS,
    TRANSFORM,
    TRANSFORM_NORM,
    VALUE,
    WORD_EMBEDDINGS,
    layer_prefix,
    layer_with_parameters,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

Parameters = dict[str, "tf.Tensor"]


def single_sequences(
    input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor
) -> dict[str, tf.Tensor]:
    """A batch for `encode`, one sequence a row, from the output of Hugging Face's tokenizers.

    Arguments are int32 [rows, length]; attention_mask is 1 at tokens and 0 at padding.
    """
    positions = tf.ones_like(input_ids) * tf.range(tf.shape(input_ids)[1])
    return {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "position_ids": positions,
        "sequence_ids": attention_mask,
    }


def encode(model: Model, parameters: Parameters, batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """Hidden states: the output of embeddings and of each layer, [rows, length, hidden]; see encoder.encode."""
    bias = attention_bias(batch["sequence_ids"])
    x = tf.gather(parameters[WORD_EMBEDDINGS], batch["input_ids"])  # (rows, length, width)
    x += tf.gather(parameters[POSITION_EMBEDDINGS], batch["position_ids"])
    x += tf.gather(parameters[TOKEN_TYPE_EMBEDDINGS], batch["token_type_ids"])
    shape = tf.shape(x)
    x = layer_norm(model, parameters, EMBEDDINGS_NORM, tf.reshape(x, [-1, x.shape[-1]]))  # (rows * length, width)
    if f"{EMBEDDING_MAPPING}.weight" in parameters:  # an ALBERT
        x = dense(parameters, EMBEDDING_MAPPING, x)  # (rows * length, hidden)
    states = [x]
    for i in range(model.num_hidden_layers):
        prefix = layer_prefix(layer_with_parameters(model, i))
        attended = _attend(model, parameters, prefix, x, bias)  # (rows * length, hidden)
        x = layer_norm(model, parameters, prefix + ATTENTION_NORM, x + attended)
        inner = gelu(model.hidden_act, dense(parameters, prefix + INTERMEDIATE, x))  # (rows * length, intermediate)
        x = layer_norm(model, parameters, prefix + OUTPUT_NORM, x + dense(parameters, prefix + OUTPUT, inner))
        states.append(x)
    return [tf.reshape(x, [shape[0], shape[1], model.hidden_size]) for x in states]


def masked_token_logits(model: Model, parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """Scores of every vocabulary entry: [..., hidden] to [..., vocabulary]; the output matrix is WORD_EMBEDDINGS."""
    x = transformed(model, parameters, hidden)  # (..., width)
    return tf.matmul(x, parameters[WORD_EMBEDDINGS], transpose_b=True) + parameters[DECODER_BIAS]


def transformed(model: Model, parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """The layer before the masked-token head's output matrix, in a ModernBERT that of all heads."""
    return layer_norm(model, parameters, TRANSFORM_NORM, gelu(model.head_act, dense(parameters, TRANSFORM, hidden)))


def pooled(parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """Apply the pooler to the last layer's output at [CLS]: [n, hidden] to [n, hidden]."""
    return tf.tanh(dense(parameters, POOLER, hidden))


def means(hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The mean of each row's tokens, [n, hidden]: of `hidden`, [n, length, hidden], where `mask`, [n, length], is 1."""
    weights = tf.cast(mask, tf.float32)[..., None]  # (n, length, 1)
    return tf.reduce_sum(hidden * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)


def pair_logits(parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """Scores for "B continues A" (0) and "it does not" (1), from the last layer's output at [CLS]: [n, 2]."""
    return dense(parameters, PAIR_CLASSIFIER, pooled(parameters, hidden))


def classifier_logits(parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """Scores of each label of a sequence, from the last layer's output at [CLS]: [n, labels]."""
    return dense(parameters, CLASSIFIER, pooled(parameters, hidden))


def tag_logits(parameters: Parameters, hidden: tf.Tensor) -> tf.Tensor:
    """Scores of each label of each position: [..., hidden] to [..., labels]."""
    return dense(parameters, CLASSIFIER, hidden)


def label_logits(parameters: Parameters, hidden: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Scores of each label of a document, where each label attends over its tokens: [n, labels].

    `hidden`: of all tokens of a document's windows, [n, tokens, hidden]; `real`: [n, tokens], 0 at padding.
    """
    scores = tf.matmul(parameters[f"{LABEL_QUERY}.weight"], hidden, transpose_b=True)  # (n, labels, tokens)
    shares = tf.nn.softmax(tf.where(real[:, None] > 0, scores, -1e9))
    context = tf.matmul(shares, hidden)  # (n, labels, hidden)
    return tf.reduce_sum(context * parameters[f"{LABEL_OUTPUT}.weight"], -1) + parameters[f"{LABEL_OUTPUT}.bias"]


def span_logits(parameters: Parameters, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Scores of each position as the answer's start and as its end: [..., length, hidden] to two of [..., length]."""
    start, end = tf.unstack(dense(parameters, SPAN_HEAD, hidden), axis=-1)
    return start, end


def attention_bias(sequences: tf.Tensor) -> tf.Tensor:
    """0 within a sequence, -1e9 across sequences: float32 [rows, 1, queries, keys], of `sequences` [rows, length]."""
    return tf.where(sequences[:, None, :, None] == sequences[:, None, None, :], 0.0, -1e9)


def _attend(model: Model, parameters: Parameters, prefix: str, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Multi-head attention of x [rows * length, hidden] (Vaswani et al. 2017, arXiv 1706.03762)."""
    rows, _, length, _ = tf.unstack(tf.shape(bias))
    heads, size = model.num_attention_heads, model.hidden_size // model.num_attention_heads

    def split(name: str) -> tf.Tensor:
        by_head = tf.reshape(dense(parameters, prefix + name, x), [rows, length, heads, size])
        return tf.transpose(by_head, [0, 2, 1, 3])  # (rows, heads, length, size)

    query, key, value = split(QUERY), split(KEY), split(VALUE)  # (rows, heads, length, size)
    weights = attention_weights(query, key, bias)  # (rows, heads, queries, keys)
    context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])  # (rows, length, heads, size)
    return dense(parameters, prefix + ATTENTION_OUTPUT, tf.reshape(context, [-1, model.hidden_size]))


def attention_weights(query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """softmax(Q K^T / sqrt(size) + bias): [rows, heads, length, size] each to [rows, heads, queries, keys]."""
    scores = tf.matmul(query, key, transpose_b=True) * (1 / math.sqrt(query.shape[-1]))
    return tf.nn.softmax(scores + tf.cast(bias, scores.dtype))


def dense(parameters: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    """x W^T + b, or without b if there is none: [..., in] to [..., out]."""
    y, bias = tf.matmul(x, parameters[f"{name}.weight"], transpose_b=True), parameters.get(f"{name}.bias")
    return y if bias is None else tf.nn.bias_add(y, bias)


def layer_norm(model: Model, parameters: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    """LayerNorm over the last axis (Ba et al. 2016, arXiv 1607.06450), with a bias if there is one."""
    weight, bias, wide = parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, -1, keepdims=True)  # (..., 1)
    normal = (wide - mean) * tf.math.rsqrt(variance + model.layer_norm_eps)
    y = normal * tf.cast(weight, tf.float32)
    return tf.cast(y if bias is None else y + tf.cast(bias, tf.float32), x.dtype)


def gelu(activation: str, x: tf.Tensor) -> tf.Tensor:
    """gelu, exact or, as "gelu_new", in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""
    if activation == "gelu_new":
        return tf.nn.gelu(x, approximate=True)
    # As tf.nn.gelu, but by erf: TensorFlow 2.21 takes erfc, for which an ONNX file has no operation.
    return x * (0.5 * (1 + tf.math.erf(x * math.sqrt(0.5))))
