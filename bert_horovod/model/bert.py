"""BERT's encoder (Devlin et al. 2019, arXiv 1810.04805) as functions over a dict of named parameters.

Names and layout of parameters ([out, in] for weights) are Hugging Face's, so that a checkpoint is a dump of the dict.
"""

import math
import zlib

import numpy as np
import tensorflow as tf

from bert_horovod.config import Model
from bert_horovod.model.dropout import DropoutState, dropout

SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output; site 0 is the embeddings'


def parameter_shapes(model: Model, next_sentence: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters, in forward order; with pooler and sentence-pair head if `next_sentence`."""
    hidden, inner, vocabulary = model.hidden_size, model.intermediate_size, model.vocab_size
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def layer_norm(name: str) -> None:
        shapes[f"{name}.LayerNorm.weight"] = (hidden,)
        shapes[f"{name}.LayerNorm.bias"] = (hidden,)

    shapes["bert.embeddings.word_embeddings.weight"] = (vocabulary, hidden)
    shapes["bert.embeddings.position_embeddings.weight"] = (model.max_position_embeddings, hidden)
    shapes["bert.embeddings.token_type_embeddings.weight"] = (model.type_vocab_size, hidden)
    layer_norm("bert.embeddings")
    for i in range(model.num_hidden_layers):
        layer = f"bert.encoder.layer.{i}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", hidden, hidden)
        dense(f"{layer}.attention.output.dense", hidden, hidden)
        layer_norm(f"{layer}.attention.output")
        dense(f"{layer}.intermediate.dense", inner, hidden)
        dense(f"{layer}.output.dense", hidden, inner)
        layer_norm(f"{layer}.output")
    if next_sentence:
        dense("bert.pooler.dense", hidden, hidden)
        dense("cls.seq_relationship", 2, hidden)
    dense("cls.predictions.transform.dense", hidden, hidden)
    layer_norm("cls.predictions.transform")
    shapes["cls.predictions.bias"] = (vocabulary,)
    return shapes


def initial_parameters(model: Model, next_sentence: bool, seed: int) -> dict[str, np.ndarray]:
    """Fresh float32 parameters: weights of a normal truncated at two deviations, zero biases, unit LayerNorm weights.

    Each tensor's values depend on the seed and its name alone.
    """
    parameters = {}
    for name, shape in parameter_shapes(model, next_sentence).items():
        if name.endswith("LayerNorm.weight"):
            parameters[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            parameters[name] = np.zeros(shape, np.float32)
        else:
            random = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
            values = random.standard_normal(shape, np.float32)
            while (outside := np.abs(values) > 2).any():
                values[outside] = random.standard_normal(int(outside.sum()), np.float32)
            parameters[name] = values * np.float32(model.initializer_range)
    return parameters


def encode(
    parameters: dict[str, tf.Tensor],
    model: Model,
    batch: dict[str, tf.Tensor],
    dtype: tf.DType,
    state: DropoutState | None = None,
) -> list[tf.Tensor]:
    """Hidden states of a micro-batch: the embeddings' and each layer's output.

    Args:
      parameters: float32, by name.
      model: the sizes.
      batch: int32 [rows, length] each: input_ids, token_type_ids, position_ids, and sequence_ids (0 is padding;
      tokens attend
        to those of the same number alone, so a row may hold several sequences).
      dtype: of the matrix products and of what is kept between them.
      state: what dropout masks are made of; None outside training.

    Returns:
      num_hidden_layers + 1 tensors of `dtype` [rows, length, hidden].
    """
    x = _embed(parameters, model, batch, state)
    x = tf.cast(x, dtype)
    bias = attention_bias(batch["sequence_ids"])
    states = [x]
    for i in range(model.num_hidden_layers):
        x = _layer(parameters, model, i, x, bias, state)
        states.append(x)
    return states


def attention_bias(sequence_ids: tf.Tensor) -> tf.Tensor:
    """What is added to scores: 0 within a sequence, -1e9 across sequences; float32 [rows, 1, length, length]."""
    same = tf.equal(sequence_ids[:, :, None], sequence_ids[:, None, :])
    return tf.where(same, 0.0, -1e9)[:, None]


def dense(parameters: dict[str, tf.Tensor], name: str, x: tf.Tensor) -> tf.Tensor:
    """x W^T + b over the last axis, in x's dtype: [..., in] to [..., out]."""
    weight = tf.cast(parameters[f"{name}.weight"], x.dtype)
    bias = tf.cast(parameters[f"{name}.bias"], x.dtype)
    flat = tf.reshape(x, [-1, x.shape[-1]])  # (rows * length, in): one large product
    flat = tf.nn.bias_add(tf.matmul(flat, weight, transpose_b=True), bias)
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [weight.shape[0]]], 0))


def layer_norm(parameters: dict[str, tf.Tensor], name: str, x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """LayerNorm over the last axis, computed in float32, returned in x's dtype (Ba et al. 2016, arXiv 1607.06450)."""
    wide = tf.cast(x, tf.float32)
    centred = wide - tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    scaled = centred * tf.math.rsqrt(variance + epsilon)
    return tf.cast(scaled * parameters[f"{name}.LayerNorm.weight"] + parameters[f"{name}.LayerNorm.bias"], x.dtype)


def activation(model: Model, x: tf.Tensor) -> tf.Tensor:
    """gelu, exact or in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return tf.nn.gelu(x, approximate=model.hidden_act == "gelu_new")


def _embed(
    parameters: dict[str, tf.Tensor], model: Model, batch: dict[str, tf.Tensor], state: DropoutState | None
) -> tf.Tensor:
    prefix = "bert.embeddings"
    x = tf.gather(parameters[f"{prefix}.word_embeddings.weight"], batch["input_ids"])  # (rows, length, hidden)
    x += tf.gather(parameters[f"{prefix}.position_embeddings.weight"], batch["position_ids"])
    x += tf.gather(parameters[f"{prefix}.token_type_embeddings.weight"], batch["token_type_ids"])
    x = layer_norm(parameters, prefix, x, model.layer_norm_eps)
    x = tf.ensure_shape(x, [None, batch["input_ids"].shape[1], model.hidden_size])
    return dropout(x, model.hidden_dropout_prob, 0, state)


def _layer(
    parameters: dict[str, tf.Tensor], model: Model, i: int, x: tf.Tensor, bias: tf.Tensor, state: DropoutState | None
) -> tf.Tensor:
    name = f"bert.encoder.layer.{i}"
    site = 1 + i * SITES_PER_LAYER
    length = x.shape[1]
    attended = _attend(parameters, model, f"{name}.attention.self", x, bias, site, state)
    attended = dense(parameters, f"{name}.attention.output.dense", attended)
    attended = tf.ensure_shape(attended, [None, length, model.hidden_size])
    x = layer_norm(
        parameters,
        f"{name}.attention.output",
        x + dropout(attended, model.hidden_dropout_prob, site + 1, state),
        model.layer_norm_eps,
    )
    inner = activation(model, dense(parameters, f"{name}.intermediate.dense", x))
    outer = dense(parameters, f"{name}.output.dense", tf.ensure_shape(inner, [None, length, model.intermediate_size]))
    outer = tf.ensure_shape(outer, [None, length, model.hidden_size])
    return layer_norm(
        parameters,
        f"{name}.output",
        x + dropout(outer, model.hidden_dropout_prob, site + 2, state),
        model.layer_norm_eps,
    )


def _attend(
    parameters: dict[str, tf.Tensor],
    model: Model,
    name: str,
    x: tf.Tensor,
    bias: tf.Tensor,
    site: int,
    state: DropoutState | None,
) -> tf.Tensor:
    heads, length = model.num_attention_heads, x.shape[1]
    head_size = model.hidden_size // heads

    def split(part: str) -> tf.Tensor:
        projected = tf.reshape(dense(parameters, f"{name}.{part}", x), [-1, length, heads, head_size])
        return tf.transpose(projected, [0, 2, 1, 3])  # (rows, heads, length, head_size)

    scores = tf.matmul(split("query"), split("key"), transpose_b=True)  # (rows, heads, length, length)
    scores = tf.cast(scores, tf.float32) * (1 / math.sqrt(head_size)) + bias
    probabilities = tf.cast(tf.nn.softmax(scores), x.dtype)
    probabilities = dropout(probabilities, model.attention_probs_dropout_prob, site, state)
    context = tf.transpose(tf.matmul(probabilities, split("value")), [0, 2, 1, 3])
    return tf.reshape(context, [-1, length, model.hidden_size])
