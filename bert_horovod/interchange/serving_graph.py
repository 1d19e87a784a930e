"""The computation of an exported model, from token ids to outputs with Hugging Face's names; uses model/plain.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bert_horovod.interchange.architectures import (
    ANSWERS,
    CLASSIFICATION,
    LABEL_ATTENTION_MODEL,
    MASKED_TOKENS,
    PRETRAINING,
    TAGS,
    Architecture,
)
from bert_horovod.interchange.sentence_transformers import VECTOR, SentenceVectors, vectors_of
from bert_horovod.model import encoder, heads, plain
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, SPAN_HEAD
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.embedding import normalised
from bert_horovod.tasks.label_attention import label_logits

# Integers [batch, length] each; with label attention [batch, windows, length].
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def input_names(model: Model) -> tuple[str, ...]:
    """The names of an exported model's inputs: without token_type_ids where there are no segment types."""
    return INPUTS if family_of(model).segments else INPUTS[:2]


class Served(tf.Module):
    """An exported model's variables and function: any batch size and length, float32, no dropout, no XLA."""

    def __init__(
        self, architecture: Architecture, model: Model, parameters: dict[str, np.ndarray], dtype: tf.DType
    ) -> None:
        super().__init__()
        self.architecture, self.model = architecture, model
        self.parameters = {name: tf.Variable(array, trainable=False) for name, array in parameters.items()}
        shape = [None] * (3 if architecture.name == LABEL_ATTENTION_MODEL else 2)
        self.signature = [tf.TensorSpec(shape, dtype, name) for name in input_names(model)]
        # Lambdas, because their arguments are the signature's, and `outputs` has more.
        serve = (
            (lambda input_ids, attention_mask, token_type_ids: self.outputs(input_ids, attention_mask, token_type_ids))
            if len(self.signature) == len(INPUTS)
            else (lambda input_ids, attention_mask: self.outputs(input_ids, attention_mask))
        )
        self.serve: Callable = tf.function(serve, input_signature=self.signature, autograph=False)

    def outputs(
        self,
        input_ids: tf.Tensor,
        attention_mask: tf.Tensor,
        token_type_ids: tf.Tensor | None = None,
        parameters: dict[str, tf.Tensor] | None = None,
    ) -> dict[str, tf.Tensor]:
        """The outputs by Hugging Face's names; outputs per token are meaningless at padding.

        `parameters`: used instead of the model's variables.
        """
        types = tf.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        ids, mask, types = (tf.cast(tensor, tf.int32) for tensor in (input_ids, attention_mask, types))
        parameters = parameters or self.parameters
        documents = tf.shape(ids)[0]
        if self.architecture.name == LABEL_ATTENTION_MODEL:
            ids, types, mask = (tf.reshape(tensor, [-1, tf.shape(ids)[2]]) for tensor in (ids, types, mask))
        family = family_of(self.model)
        textbook = family.textbook
        hidden = textbook.encode(self.model, parameters, plain.single_sequences(ids, types, mask))[-1]
        name, first = self.architecture.name, hidden[:, 0]
        if name == ANSWERS:
            if family.shared_head:
                hidden = plain.transformed(self.model, parameters, hidden)
            logits = plain.span_logits(parameters, hidden)
            return dict(zip(("start_logits", "end_logits"), logits, strict=True))
        if name == LABEL_ATTENTION_MODEL:
            tokens = tf.reshape(hidden, [documents, -1, self.model.hidden_size])
            return {"logits": plain.label_logits(parameters, tokens, tf.reshape(mask, [documents, -1]))}
        if name == CLASSIFICATION:
            if family.shared_head:
                features = textbook.text_features(self.model, parameters, hidden, mask)
                return {"logits": plain.dense(parameters, CLASSIFIER, features)}
            return {"logits": plain.classifier_logits(parameters, first)}
        if name == TAGS:
            if family.shared_head:
                hidden = plain.transformed(self.model, parameters, hidden)
            return {"logits": plain.tag_logits(parameters, hidden)}
        if name == MASKED_TOKENS:
            return {"logits": plain.masked_token_logits(self.model, parameters, hidden)}
        if name == PRETRAINING:
            return {
                "prediction_logits": plain.masked_token_logits(self.model, parameters, hidden),
                "seq_relationship_logits": plain.pair_logits(parameters, first),
            }
        outputs = {"last_hidden_state": hidden}
        if self.architecture.pooler:
            outputs["pooler_output"] = plain.pooled(parameters, first)
        if vectors := vectors_of(self.architecture.entries or {}):
            outputs[VECTOR] = _vectors(vectors, first if vectors.pooling == "first" else plain.means(hidden, mask))
        return outputs


def _vectors(vectors: SentenceVectors, pooled: tf.Tensor) -> tf.Tensor:
    """The vectors of texts from their pooled states, [texts, hidden]."""
    kept = pooled[:, : vectors.dimensions or pooled.shape[-1]]
    return normalised(kept) if vectors.normalised else kept


def trained_outputs(
    architecture: Architecture, model: Model, parameters: dict[str, np.ndarray], rows: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The same outputs, computed with the code of training (encoder.py, heads.py), to compare an export with.

    `rows`: INPUTS, int32 [rows, length]; with label attention [documents, windows, length].
    """
    if architecture.name == LABEL_ATTENTION_MODEL:
        documents = rows["input_ids"].shape[0]
        rows = {name: array.reshape(-1, array.shape[-1]) for name, array in rows.items()}
    policy = ComputePolicy()
    weights = cast_weights({name: tf.constant(array) for name, array in parameters.items()}, policy.dtype)
    forward = Forward(model, weights, policy)
    count, length = rows["input_ids"].shape
    batch = {name: tf.constant(rows[name], tf.int32) for name in ("input_ids", "token_type_ids")}
    batch["position_ids"] = tf.tile(tf.range(length)[None], [count, 1])
    batch["sequence_ids"] = tf.constant(rows["attention_mask"], tf.int32)
    hidden = tf.reshape(encoder.encode(forward, batch)[-1], [count, length, model.hidden_size])
    batch["cls_positions"] = tf.zeros([count, 1], tf.int32)
    flat, first, name = tf.reshape(hidden, [count * length, -1]), hidden[:, 0], architecture.name
    outputs = {"last_hidden_state": hidden}
    if name == ANSWERS:
        start, end = tf.unstack(tf.reshape(heads.place_logits(forward, flat, SPAN_HEAD), [count, length, 2]), axis=-1)
        outputs = {"start_logits": start, "end_logits": end}
    elif name == LABEL_ATTENTION_MODEL:
        tokens = tf.reshape(hidden, [documents, -1, model.hidden_size])
        outputs = {"logits": label_logits(forward, tokens, tf.reshape(batch["sequence_ids"], [documents, -1]))}
    elif name == CLASSIFICATION:
        outputs = {"logits": dense(heads.text_features(forward, batch), *forward.affine(CLASSIFIER))}
    elif name == TAGS:
        outputs = {"logits": tf.reshape(heads.place_logits(forward, flat, CLASSIFIER), [count, length, -1])}
    elif name in (MASKED_TOKENS, PRETRAINING):
        logits = tf.reshape(heads.masked_token_logits(forward, flat), [count, length, -1])
        outputs = {"logits": logits}
        if name == PRETRAINING:
            outputs = {"prediction_logits": logits, "seq_relationship_logits": heads.pair_logits(forward, first)}
    elif architecture.pooler:
        outputs["pooler_output"] = heads.pooled(forward, first)
    if vectors := vectors_of(architecture.entries or {}):
        means = heads.sequence_means(hidden, batch["sequence_ids"], 1)
        outputs[VECTOR] = _vectors(vectors, first if vectors.pooling == "first" else means)
    return {key: array.numpy() for key, array in outputs.items()}
