"""Masks that do not depend on the layout of the work.

Compiled layers return for backward what it reads, once, and nothing else.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.encoder import _layer_programs, encode_at
from bert_horovod.model.forward import (
    ComputePolicy,
    DropoutState,
    Forward,
    dropped,
    instead,
    keep,
    keeping,
    random_bytes,
)
from bert_horovod.model.layers import attention_bias
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.model.weights import cast_weights, layer_weights
from bert_horovod.recipe.sections import Model
from tests.model.forwards import dropout_of, tensors
from tests.toys import TOY_MODEL

# Bytes of a row: multiples of a Philox block of 16, and not.
ROW_SHAPES = [(16,), (48,), (1,), (5,), (17,), (3, 7), (2, 5, 5), (33, 3)]


def drop(x: tf.Tensor, rate: float, site: int | tf.Tensor, dropout: DropoutState | None) -> tf.Tensor:
    """Draw and apply."""
    return dropped(x, rate, random_bytes(x.shape, rate, site, dropout))


def masked(
    shape: tuple[int, ...],
    rows: int,
    first_row: int = 0,
    rate: float = 0.5,
    site: int = 3,
    key: int = 99,
    xla: bool = False,
) -> np.ndarray:
    """Dropout of ones: 0 where an element is dropped."""

    @tf.function(jit_compile=xla)
    def apply(x, key, first_row):
        return drop(x, rate, site, DropoutState(key, first_row))

    return apply(tf.ones([rows, *shape]), tf.constant([key], tf.uint64), tf.constant(first_row, tf.uint64)).numpy()


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
def test_rows_have_the_same_mask_alone_as_in_the_global_batch(shape):
    batch_mask = masked(shape, 32)
    np.testing.assert_array_equal(masked(shape, 8, first_row=8), batch_mask[8:16])
    np.testing.assert_array_equal(masked(shape, 1, first_row=31), batch_mask[31:])


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
def test_masks_are_the_same_inside_xla_and_outside(shape):
    np.testing.assert_array_equal(masked(shape, 8, first_row=8, xla=True), masked(shape, 32)[8:16])


def test_far_rows_of_a_large_batch_have_masks_of_their_own():
    far = 1 << 40
    assert (masked((64,), 4, first_row=far) != masked((64,), 4)).any()
    np.testing.assert_array_equal(masked((64,), 4, first_row=far)[2:], masked((64,), 2, first_row=far + 2))


def test_masks_differ_by_site_by_key_and_by_row():
    masks = [masked((64,), 4), masked((64,), 4, site=4), masked((64,), 4, key=100), masked((64,), 4, first_row=4)]
    rows = {row.tobytes() for mask in masks for row in mask}
    assert len(rows) == 16


def test_masks_of_different_sites_keys_and_rows_are_not_correlated():
    mask = masked((4096,), 2)
    for other in (masked((4096,), 2, site=4), masked((4096,), 2, key=100), masked((4096,), 2, first_row=2), mask[::-1]):
        agreement = np.mean((mask == 0) == (other == 0))
        assert abs(agreement - 0.5) < 5 * 0.5 / np.sqrt(mask.size)  # five standard deviations


@pytest.mark.parametrize("rate", [0.002, 0.1, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_in_steps_of_one_in_256_and_the_mean_stays(rate):
    applied = round(256 * rate) / 256
    mask = masked((1000,), 200, rate=rate)
    deviation = np.sqrt(applied * (1 - applied) / mask.size)
    assert abs(np.mean(mask == 0) - applied) < 5 * deviation
    assert mask.max() == pytest.approx(1 / (1 - applied))
    assert abs(mask.mean() - 1) < 5 * deviation / (1 - applied)


def test_kept_elements_are_scaled_and_dropped_ones_are_zero():
    x = tf.constant(np.random.default_rng(0).standard_normal((4, 30)), tf.float32)
    np.testing.assert_allclose(drop(x, 0.25, 3, dropout_of(99)), x * masked((30,), 4, rate=0.25), rtol=1e-6)


def test_an_infinite_element_that_is_dropped_is_zero():
    output = drop(tf.fill([1, 64], np.inf), 0.5, 3, dropout_of(99)).numpy()
    assert set(output.flat) == {0.0, np.inf}


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_half_precision_has_the_masks_of_float32(dtype):
    output = drop(tf.ones([4, 30], dtype), 0.5, 3, dropout_of(99))
    assert output.dtype == dtype
    np.testing.assert_array_equal(tf.cast(output, tf.float32), masked((30,), 4))


def test_the_gradient_goes_through_what_was_kept_alone():
    x = tf.ones([4, 30])
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = drop(x, 0.5, 3, dropout_of(99))
    np.testing.assert_array_equal(tape.gradient(output, x), masked((30,), 4))


def test_at_rate_zero_and_outside_training_nothing_is_dropped():
    x = tf.ones([4, 30])
    assert drop(x, 0.0, 3, dropout_of(99)) is x
    assert drop(x, 0.5, 3, None) is x


def test_a_site_may_be_a_tensor():
    x = tf.ones([4, 30])
    np.testing.assert_array_equal(
        drop(x, 0.5, tf.constant(3, tf.uint64), dropout_of(99)), drop(x, 0.5, 3, dropout_of(99))
    )


MODEL = Model(**TOY_MODEL)
ROWS, LENGTH, PLACES = 3, 32, 5


def parameters() -> dict[str, tf.Tensor]:
    return tensors(initial_values(encoder_shapes(MODEL, pooler=False), 0.1, 0))


def test_outside_of_a_program_keep_does_nothing():
    x = tf.constant([1.0, 2.0])
    assert keep(x) is x


def test_a_backward_program_reads_what_forward_kept_and_not_what_it_computes():
    def cube(x: tf.Tensor) -> tf.Tensor:
        return keep(x * x) * x

    x, substitute = tf.constant(2.0), tf.constant(100.0)
    with keeping() as kept:
        assert cube(x) == 8.0
    assert [float(each) for each in kept] == [4.0]
    with instead([substitute]), tf.GradientTape() as tape:
        tape.watch(x)
        y = cube(x)
    assert y == 200.0
    # (x * x)' * x + kept: the gradient passes through the kept tensor to what computed it
    assert tape.gradient(y, x) == 4.0 * 2.0 + 100.0
    assert keep(x) is x


def root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor without the operations that only hand it on."""
    while tensor.op.type in ("Identity", "IdentityN", "StopGradient"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


@pytest.mark.parametrize("at_places", [True, False], ids=["some positions", "all"])
def test_a_forward_program_returns_nothing_twice_and_none_of_its_arguments(at_places):
    policy = ComputePolicy(xla="layers")
    weights = layer_weights(cast_weights(parameters(), policy.dtype), MODEL)[0]
    ids = tf.ones([ROWS, LENGTH], tf.int32)
    queries = ids[:, :PLACES] if at_places else ids
    places = tf.constant(np.arange(ROWS * PLACES), tf.int32) if at_places else None
    x = tf.zeros([ROWS * LENGTH, MODEL.hidden_size])
    program = _layer_programs(MODEL, policy).forward.get_concrete_function(
        x, weights, dropout_of(7, 40), attention_bias(queries, ids), tf.constant(1, tf.uint64), places
    )
    # The result; query, key, value, probabilities, context twice; of two LayerNorms the draws, the normalised sum and
    # its scale, and one result; gelu with its argument.
    returned = [root(tensor) for tensor in program.outputs]
    assert len(returned) == len({tensor.ref() for tensor in returned}) == 16
    assert not {tensor.op.type for tensor in returned} & {"Placeholder", "Const"}


def gradients(policy: ComputePolicy, at_places: bool) -> list[np.ndarray]:
    """Of the weights and of one number a hidden state, in the last layer at some positions or at all."""
    random = np.random.default_rng(0)
    batch = {
        name: tf.constant(random.integers(0, most, (ROWS, LENGTH)), tf.int32)
        for name, most in (("input_ids", 100), ("token_type_ids", 2), ("position_ids", 32), ("sequence_ids", 2))
    }
    positions = tf.constant(random.integers(0, LENGTH, (ROWS, PLACES if at_places else LENGTH)), tf.int32)
    weights = cast_weights(parameters(), policy.dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = encode_at(Forward(MODEL, weights, policy, dropout_of(7, 40)), batch, positions)
        total = tf.reduce_sum(tf.sin(3 * tf.cast(hidden, tf.float32)))
    weight_gradients = tape.gradient(total, list(weights.values()))
    return [tf.cast(tf.convert_to_tensor(each), tf.float32).numpy() for each in weight_gradients if each is not None]


@pytest.mark.full
@pytest.mark.parametrize(
    "at_places", [pytest.param(True, marks=pytest.mark.slow), False], ids=["some positions", "all"]
)
def test_gradients_are_those_of_plain_layers(at_places):
    expected = gradients(ComputePolicy(), at_places)
    for recompute in ("none", "attention", "layer"):
        computed = gradients(ComputePolicy(xla="layers", recompute=recompute), at_places)
        for mine, other in zip(computed, expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-3, atol=2e-5 * np.abs(other).max() + 1e-6)
