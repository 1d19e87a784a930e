"""Textbook BERT gives the numbers of the transcription, of the fast path and of transformers."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.safetensors_file import map_weights
from bert_horovod.model import encoder, heads, plain
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import CLASSIFIER
from bert_horovod.recipe.sections import Model
from tests.interchange.conftest import SIZES, random_model
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


def test_a_saved_model_of_it_needs_nothing_of_this_program(tmp_path):
    module = tf.Module()
    module.parameters = {name: tf.Variable(value) for name, value in parameters().items()}
    signature = [tf.TensorSpec([None, None], tf.int32)] * 3

    @tf.function(input_signature=signature, autograph=False)
    def serve(input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor) -> tf.Tensor:
        batch = plain.single_sequences(input_ids, token_type_ids, attention_mask)
        return plain.pair_logits(module.parameters, plain.encode(MODEL, module.parameters, batch)[-1][:, 0])

    module.serve = serve
    tf.saved_model.save(module, str(tmp_path))
    operations = {operation.type for operation in serve.get_concrete_function().graph.get_operations()}
    assert not operations & {"PyFunc", "EagerPyFunc", "PartitionedCall", "StatefulPartitionedCall"}
    batch = random_batch(((16,), (9,), (1,)))
    loaded = tf.saved_model.load(str(tmp_path))
    logits = loaded.serve(*(tf.constant(batch[name]) for name in ("input_ids", "token_type_ids", "sequence_ids")))
    close(logits, heads.pair_logits(fast(), encoder.encode(fast(), tensors(batch))[-1][:, 0]))


def test_a_classifier_gives_the_logits_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    original = random_model("BertForSequenceClassification", num_labels=3)
    original.save_pretrained(tmp_path)
    weights = {name: tf.constant(np.array(value)) for name, value in map_weights(tmp_path).items()}
    assert weights[f"{CLASSIFIER}.weight"].shape == (3, SIZES["hidden_size"])
    random = np.random.default_rng(0)
    mask = np.arange(16) < np.array([[16], [9], [1]])
    ids = np.where(mask, random.integers(1, SIZES["vocab_size"], mask.shape), 0)
    types = np.where(mask, np.arange(16) >= 5, 0)
    with torch.no_grad():
        inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        expected = original(**{name: torch.tensor(value.astype(np.int64)) for name, value in inputs.items()}).logits
    batch = plain.single_sequences(*(tf.constant(value, tf.int32) for value in (ids, types, mask)))
    model = Model(**SIZES)
    hidden = plain.encode(model, weights, batch)[-1]
    np.testing.assert_allclose(plain.classifier_logits(weights, hidden[:, 0]), expected.numpy(), rtol=1e-4, atol=1e-4)
