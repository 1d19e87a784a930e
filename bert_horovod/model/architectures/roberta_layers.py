"""What RoBERTa computes: BERT's layers, with another count of positions and one segment type for all tokens."""

from __future__ import annotations

import dataclasses

from bert_horovod.model import plain
from bert_horovod.model.architectures import bert_layers
from bert_horovod.model.architectures.bert_layers import layer
from bert_horovod.model.architectures.roberta_settings import UNUSED_POSITIONS
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import POSITION_EMBEDDINGS
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

__all__ = ["embed", "encode", "layer"]


def embed(forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """See bert_layers.embed."""
    weights = _used(forward.weights)
    return bert_layers.embed(dataclasses.replace(forward, weights=weights), _one_type(batch))


def encode(model: Model, parameters: plain.Parameters, batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """See plain.encode."""
    return plain.encode(model, _used(parameters), _one_type(batch))


def _used(weights: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The weights without the positions that no token has, so that a text's first token has position 0.

    The table is cut and position ids stay, because int32 arrays are added on the host where there is a GPU.
    """
    return weights | {POSITION_EMBEDDINGS: weights[POSITION_EMBEDDINGS][UNUSED_POSITIONS:]}


def _one_type(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return batch | {"token_type_ids": tf.zeros_like(batch["token_type_ids"])}
