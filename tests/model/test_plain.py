"""Textbook BERT gives the numbers of the transcription, of the fast path and of transformers."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import encoder, heads, plain
from bert_horovod.model.forward import Forward
from tests.model.forwards import forward_of
from tests.model.forwards import tensors as as_constants
from tests.model.reference import LENGTH, MODEL, PACKED, Reference, random_batch, random_parameters

ARRAYS = random_parameters(MODEL, pairs=True)
NAMES = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")


@functools.cache
def parameters() -> dict[str, tf.Tensor]:
    return as_constants(ARRAYS)


@functools.cache
def fast() -> Forward:
    return forward_of(MODEL, ARRAYS)


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def tensors(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(batch[name]) for name in NAMES}


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_logits_are_those_of_the_fast_path_and_of_the_transcription(act):
    model = dataclasses.replace(MODEL, hidden_act=act)
    hidden = np.random.default_rng(0).standard_normal((6, MODEL.hidden_size)).astype(np.float32)
    forward, reference = dataclasses.replace(fast(), model=model), Reference(model, ARRAYS)
    tokens = plain.masked_token_logits(model, parameters(), tf.constant(hidden))
    close(tokens, heads.masked_token_logits(forward, tf.constant(hidden)))
    close(tokens, reference.token_logits(hidden.astype(np.float64)))
    pairs = plain.pair_logits(parameters(), tf.constant(hidden))
    close(pairs, heads.pair_logits(forward, tf.constant(hidden)))
    close(pairs, reference.pair_logits(hidden.astype(np.float64)))


def test_one_trace_serves_all_numbers_of_rows_and_lengths():
    @tf.function(input_signature=[{name: tf.TensorSpec([None, None], tf.int32) for name in NAMES}], autograph=False)
    def logits(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return plain.masked_token_logits(MODEL, parameters(), plain.encode(MODEL, parameters(), batch)[-1])

    batch = tensors(random_batch())
    for rows, length in ((len(PACKED), LENGTH), (2, 9), (1, 1)):
        part = {name: value[:rows, :length] for name, value in batch.items()}
        hidden = tf.reshape(encoder.encode(fast(), part)[-1], [rows * length, -1])
        close(logits(part), tf.reshape(heads.masked_token_logits(fast(), hidden), [rows, length, -1]))
    assert logits.experimental_get_tracing_count() == 1
    assert logits.get_concrete_function().output_shapes.as_list() == [None, None, MODEL.vocab_size]
