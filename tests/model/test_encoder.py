"""The encoder: padding, narrow types, compiled layers; architectures/test_conformance.py compares its numbers."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.encoder import encode, encode_at
from bert_horovod.recipe.sections import Model
from tests.model.forwards import dropout_of, forward_of, tensors
from tests.model.reference import LENGTH, MODEL, PACKED, random_batch, random_parameters

PARAMETERS = random_parameters(MODEL, pairs=True)


def hidden_states(batch: dict[str, np.ndarray], model: Model = MODEL, dtype: tf.DType = tf.float32) -> list[np.ndarray]:
    states = encode(forward_of(model, PARAMETERS, dtype=dtype), tensors(batch))
    assert all(state.dtype == dtype for state in states)
    return [tf.cast(state, tf.float32).numpy() for state in states]


def test_the_two_forms_of_gelu_differ():
    batch = random_batch()
    exact, approximate = (
        hidden_states(batch, dataclasses.replace(MODEL, hidden_act=act))[-1] for act in ("gelu", "gelu_new")
    )
    assert np.abs(exact - approximate).max() > 1e-5


def test_what_stands_in_the_padding_does_not_matter():
    batch = random_batch()
    padding = batch["sequence_ids"] == 0
    changed = {name: array.copy() for name, array in batch.items()}
    changed["input_ids"][padding] = 7
    changed["token_type_ids"][padding] = 1
    for state, expected in zip(hidden_states(changed), hidden_states(batch), strict=True):
        np.testing.assert_array_equal(state[~padding], expected[~padding])


def test_a_row_of_padding_alone_is_finite():
    batch = random_batch(((), (16,)))
    for dtype in (tf.float32, tf.bfloat16, tf.float16):
        assert all(np.isfinite(state).all() for state in hidden_states(batch, dtype=dtype))


@pytest.mark.parametrize(("dtype", "resolution"), [(tf.bfloat16, 2**-8), (tf.float16, 2**-11)])
def test_half_precision_stays_within_eight_roundings_of_float32(dtype, resolution):
    batch = random_batch()
    real = batch["sequence_ids"] > 0
    for half, full in zip(hidden_states(batch, dtype=dtype), hidden_states(batch), strict=True):
        assert np.sqrt(np.mean((half - full)[real] ** 2)) <= 8 * resolution * np.sqrt(np.mean(full[real] ** 2))


@pytest.mark.parametrize("xla", ["off", "elementwise", "layers"])
@pytest.mark.parametrize("count", [5, LENGTH + 1])
def test_the_last_layer_at_some_positions_is_what_it_is_there(xla, count):
    batch = tensors(random_batch())
    positions = np.random.default_rng(0).integers(0, LENGTH, (len(PACKED), count)).astype(np.int32)
    computed = encode_at(forward_of(MODEL, PARAMETERS, xla=xla), batch, tf.constant(positions))
    expected = np.take_along_axis(encode(forward_of(MODEL, PARAMETERS), batch)[-1].numpy(), positions[..., None], 1)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("xla", ["elementwise", "layers"])
def test_xla_gives_the_hidden_states_that_it_gives_off_with_the_same_dropout(xla):
    model = dataclasses.replace(MODEL, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    batch, dropout = tensors(random_batch()), dropout_of(7, 40)
    compiled, expected = (encode(forward_of(model, PARAMETERS, dropout, xla=each), batch) for each in (xla, "off"))
    for mine, other in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    assert np.abs(expected[-1] - encode(forward_of(model, PARAMETERS), batch)[-1]).max() > 0.1  # there was dropout
