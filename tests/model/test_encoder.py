"""The encoder against an independent transcription."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.encoder import encode, encode_at
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from tests.model.reference import LENGTH, MODEL, PACKED, Reference, random_batch, random_parameters

PLAIN = ComputePolicy()
PARAMETERS = random_parameters(MODEL, pairs=True)


def constants(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def forward(model: Model = MODEL, policy: ComputePolicy = PLAIN, dropout: DropoutState | None = None) -> Forward:
    return Forward(model, cast_weights(constants(PARAMETERS), policy.dtype), policy, dropout)


def hidden_states(batch: dict[str, np.ndarray], model: Model = MODEL, dtype: tf.DType = tf.float32) -> list[np.ndarray]:
    states = encode(forward(model, ComputePolicy(dtype)), constants(batch))
    assert all(state.dtype == dtype for state in states)
    return [tf.cast(state, tf.float32).numpy() for state in states]


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_hidden_states_are_those_of_the_transcription_for_padded_and_packed_rows(act):
    model = dataclasses.replace(MODEL, hidden_act=act)
    batch = random_batch()
    real = batch["sequence_ids"] > 0
    states, expected = hidden_states(batch, model), Reference(model, PARAMETERS).encode_batch(batch)
    assert len(states) == model.num_hidden_layers + 1
    for state, reference in zip(states, expected, strict=True):
        np.testing.assert_allclose(state[real], reference[real], rtol=1e-5, atol=1e-5)


def test_the_two_forms_of_gelu_differ():
    batch = random_batch()
    exact, approximate = (
        hidden_states(batch, dataclasses.replace(MODEL, hidden_act=act))[-1] for act in ("gelu", "gelu_new")
    )
    assert np.abs(exact - approximate).max() > 1e-5


def test_sequences_packed_in_a_row_have_the_hidden_states_that_they_have_alone():
    batch = random_batch()
    together = hidden_states(batch)
    for row, lengths in enumerate(PACKED):
        start = 0
        for length in lengths:
            place = slice(start, start + length)
            alone = {name: np.zeros((1, LENGTH), np.int32) for name in batch}
            for name in batch:
                alone[name][0, :length] = batch[name][row, place]
            for state, expected in zip(together, hidden_states(alone), strict=True):
                np.testing.assert_allclose(state[row, place], expected[0, :length], rtol=1e-5, atol=1e-5)
            start += length


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


@pytest.mark.parametrize(
    "policy", [PLAIN, ComputePolicy(xla="elementwise"), ComputePolicy(xla="layers")], ids=lambda policy: policy.xla
)
@pytest.mark.parametrize("count", [5, LENGTH + 1])
def test_the_last_layer_at_some_positions_is_what_it_is_there(policy, count):
    batch = constants(random_batch())
    positions = np.random.default_rng(0).integers(0, LENGTH, (len(PACKED), count)).astype(np.int32)
    computed = encode_at(forward(policy=policy), batch, tf.constant(positions))
    expected = np.take_along_axis(encode(forward(), batch)[-1].numpy(), positions[..., None], 1)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("xla", ["elementwise", "layers"])
def test_xla_gives_the_hidden_states_that_it_gives_off_with_the_same_dropout(xla):
    model = dataclasses.replace(MODEL, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    batch = constants(random_batch())
    dropout = DropoutState(tf.constant([7], tf.uint64), tf.constant(40, tf.uint64))
    compiled, expected = (encode(forward(model, ComputePolicy(xla=each), dropout), batch) for each in (xla, "off"))
    for mine, other in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    assert np.abs(expected[-1] - encode(forward(model), batch)[-1]).max() > 0.1  # there was dropout
