"""A whole architecture in one file: LayerNorm first, a gated feed-forward network, no positions, no types."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_horovod.model import plain
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.layers import attention, dense, layer_norm, merge_heads, rows_at, split_heads
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    BERT,
    INTERMEDIATE,
    KEY,
    OUTPUT,
    OUTPUT_NORM,
    POOLER,
    QUERY,
    QUERY_KEY_VALUE,
    VALUE,
    WORD_EMBEDDINGS,
    Shapes,
    dense_shapes,
    layer_norm_shapes,
    layer_prefix,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

TYPES = 7  # a model with so many segment types is one of this family
SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size", "type_vocab_size"),
)


class Toy(Family):
    """See above."""

    model_type = "toy"
    title = "a toy"
    class_prefix = "Toy"
    layers = textbook = sys.modules[__name__]
    token_ids: ClassVar = {"pad_token_id": "pad_token"}

    def includes(self, model: Model) -> bool:
        return model.type_vocab_size == TYPES

    def encoder_shapes(self, model: Model, pooler: bool) -> Shapes:
        hidden, shapes = model.hidden_size, {WORD_EMBEDDINGS: (model.vocab_size, model.hidden_size)}
        for prefix in map(layer_prefix, range(model.num_hidden_layers)):
            shapes |= layer_norm_shapes(prefix + ATTENTION_NORM, hidden)
            for name in (QUERY, KEY, VALUE, ATTENTION_OUTPUT):
                shapes |= dense_shapes(prefix + name, hidden, hidden)
            shapes |= layer_norm_shapes(prefix + OUTPUT_NORM, hidden)
            shapes |= dense_shapes(prefix + INTERMEDIATE, 2 * model.intermediate_size, hidden)
            shapes |= dense_shapes(prefix + OUTPUT, hidden, model.intermediate_size)
        return shapes | (dense_shapes(POOLER, hidden, hidden) if pooler else {})

    def configuration(self, model: Model) -> dict[str, Any]:
        return {name: getattr(model, name) for name in SIZES} | {"model_type": self.model_type}

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: config[name] for name in SIZES}

    def name_in_file(self, name: str) -> str:
        return name.replace(BERT, "toy.", 1)

    def name_of_parameter(self, name: str) -> str:
        return name.replace("toy.", BERT, 1)


def embed(forward, batch) -> tf.Tensor:
    return tf.reshape(tf.gather(forward.weights[WORD_EMBEDDINGS], batch["input_ids"]), [-1, forward.model.hidden_size])


def layer(forward, x, bias, site, places) -> tf.Tensor:
    model, policy, rows = forward.model, forward.policy, bias.shape[0]
    normal = layer_norm(x, *forward.affine(ATTENTION_NORM), model.layer_norm_eps, policy)
    count = model.num_attention_heads
    query, key, value = split_heads(dense(normal, *forward.affine(QUERY_KEY_VALUE)), rows, 3, count, policy)
    if places is not None:
        (query,) = split_heads(rows_at(merge_heads(query), places), rows, 1, count, policy)
        x = rows_at(x, places)
    context = attention(query, key, value, bias, model.attention_probs_dropout_prob, site, forward.dropout, policy)
    x += dense(merge_heads(context), *forward.affine(ATTENTION_OUTPUT))
    normal = layer_norm(x, *forward.affine(OUTPUT_NORM), model.layer_norm_eps, policy)
    inner, gate = tf.split(dense(normal, *forward.affine(INTERMEDIATE)), 2, axis=1)
    return x + dense(tf.nn.gelu(inner) * gate, *forward.affine(OUTPUT))


def encode(model: Model, parameters, batch) -> list[tf.Tensor]:
    bias = plain.attention_bias(batch["sequence_ids"])
    states = [tf.gather(parameters[WORD_EMBEDDINGS], batch["input_ids"])]
    for prefix in map(layer_prefix, range(model.num_hidden_layers)):
        x = states[-1]
        normal = plain.layer_norm(model, parameters, prefix + ATTENTION_NORM, x)
        x += tf.reshape(plain._attend(model, parameters, prefix, normal, bias), tf.shape(x))
        normal = plain.layer_norm(model, parameters, prefix + OUTPUT_NORM, x)
        inner, gate = tf.split(plain.dense(parameters, prefix + INTERMEDIATE, normal), 2, axis=-1)
        states.append(x + plain.dense(parameters, prefix + OUTPUT, tf.nn.gelu(inner) * gate))
    return states
