"""The computation of an exported model, from token ids to outputs with Hugging Face's names; uses model/plain.py."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_horovod.interchange.architectures import (
    ANSWERS,
    CLASSIFICATION,
    LABEL_ATTENTION_MODEL,
    MASKED_TOKENS,
    PRETRAINING,
    Architecture,
)
from bert_horovod.model import encoder, heads, plain
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import Forward
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, SPAN_HEAD
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.label_attention import label_logits

# Integers [batch, length] each; with label attention [batch, windows, length].
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Served(tf.Module):
    """An exported model's variables and function: any batch size and length, float32, no dropout, no XLA.

    Args:
        architecture: decides the outputs.
        model: the sizes.
        parameters: the architecture's.
        dtype: dtype of the inputs.
    """

    def __init__(
        self, architecture: Architecture, model: Model, parameters: dict[str, np.ndarray], dtype: tf.DType
    ) -> None:
        super().__init__()
        self.architecture, self.model = architecture, model
        self.parameters = {name: tf.Variable(array, trainable=False) for name, array in parameters.items()}
        shape = [None] * (3 if architecture.name == LABEL_ATTENTION_MODEL else 2)
        self.signature = [tf.TensorSpec(shape, dtype, name) for name in INPUTS]
        # A lambda, because the signature has only three inputs, and `outputs` has a fourth argument.
        self.serve: Callable = tf.function(
            lambda input_ids, attention_mask, token_type_ids: self.outputs(input_ids, attention_mask, token_type_ids),
            input_signature=self.signature,
            autograph=False,
        )

    def outputs(
        self,
        input_ids: tf.Tensor,
        attention_mask: tf.Tensor,
        token_type_ids: tf.Tensor,
        parameters: dict[str, tf.Tensor] | None = None,
    ) -> dict[str, tf.Tensor]:
        """The outputs by Hugging Face's names; outputs per token are meaningless at padding.

        `parameters`: used instead of the model's variables.
        """
        ids, mask, types = (tf.cast(tensor, tf.int32) for tensor in (input_ids, attention_mask, token_type_ids))
        parameters = parameters or self.parameters
        documents = tf.shape(ids)[0]
        if self.architecture.name == LABEL_ATTENTION_MODEL:
            ids, types, mask = (tf.reshape(tensor, [-1, tf.shape(ids)[2]]) for tensor in (ids, types, mask))
        encode = family_of(self.model).textbook().encode
        hidden = encode(self.model, parameters, plain.single_sequences(ids, types, mask))[-1]
        name, first = self.architecture.name, hidden[:, 0]
        if name == ANSWERS:
            return dict(zip(("start_logits", "end_logits"), plain.span_logits(parameters, hidden), strict=True))
        if name == LABEL_ATTENTION_MODEL:
            tokens = tf.reshape(hidden, [documents, -1, self.model.hidden_size])
            return {"logits": plain.label_logits(parameters, tokens, tf.reshape(mask, [documents, -1]))}
        if name == CLASSIFICATION:
            return {"logits": plain.classifier_logits(parameters, first)}
        if name == MASKED_TOKENS:
            return {"logits": plain.masked_token_logits(self.model, parameters, hidden)}
        if name == PRETRAINING:
            return {
                "prediction_logits": plain.masked_token_logits(self.model, parameters, hidden),
                "seq_relationship_logits": plain.pair_logits(parameters, first),
            }
        pooled = {"pooler_output": plain.pooled(parameters, first)} if self.architecture.pooler else {}
        return {"last_hidden_state": hidden, **pooled}


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
    flat, first, name = tf.reshape(hidden, [count * length, -1]), hidden[:, 0], architecture.name
    outputs = {"last_hidden_state": hidden}
    if name == ANSWERS:
        start, end = tf.unstack(tf.reshape(dense(flat, *forward.affine(SPAN_HEAD)), [count, length, 2]), axis=-1)
        outputs = {"start_logits": start, "end_logits": end}
    elif name == LABEL_ATTENTION_MODEL:
        tokens = tf.reshape(hidden, [documents, -1, model.hidden_size])
        outputs = {"logits": label_logits(forward, tokens, tf.reshape(batch["sequence_ids"], [documents, -1]))}
    elif name == CLASSIFICATION:
        outputs = {"logits": dense(heads.pooled(forward, first), *forward.affine(CLASSIFIER))}
    elif name in (MASKED_TOKENS, PRETRAINING):
        logits = tf.reshape(heads.masked_token_logits(forward, flat), [count, length, -1])
        outputs = {"logits": logits}
        if name == PRETRAINING:
            outputs = {"prediction_logits": logits, "seq_relationship_logits": heads.pair_logits(forward, first)}
    elif architecture.pooler:
        outputs["pooler_output"] = heads.pooled(forward, first)
    return {key: array.numpy() for key, array in outputs.items()}
