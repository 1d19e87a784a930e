"""What numbers become on the wire, against float64 NumPy."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.exchange.compressed.compressed_sums import Signs
from bert_horovod.exchange.two_step import BLOCK, Float16, Int8, encode_owing

ROWS, NUMBERS = 2, 6 * BLOCK


def numbers() -> np.ndarray:
    """float32 [ROWS, NUMBERS] of many magnitudes; the third block is of zeros."""
    random = np.random.default_rng(0)
    magnitudes = np.repeat(10.0 ** random.uniform(-20, 10, (ROWS, NUMBERS // BLOCK)), BLOCK, 1)
    array = (random.standard_normal((ROWS, NUMBERS)) * magnitudes).astype(np.float32)
    array[:, 2 * BLOCK : 3 * BLOCK] = 0
    return array


def int8_scales(values: np.ndarray) -> np.ndarray:
    """The scale of each number's block, float64."""
    blocks = np.abs(values.astype(np.float64)).reshape(ROWS, -1, BLOCK)
    scales = (blocks.max(2) / 127).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return np.repeat(scales, BLOCK, 1)


def test_int8_sends_the_nearest_of_255_steps_of_its_blocks_scale():
    values = numbers()
    sent, stands_for = Int8().encode(tf.constant(values))
    scales = int8_scales(values)
    steps = np.divide(values, scales, out=np.zeros(values.shape), where=scales > 0)
    # A scale that was rounded down leaves the block's largest numbers half a step beyond 127.
    expected = np.clip(np.round(steps), -127, 127) * scales
    off = np.abs(stands_for.numpy() - expected)
    beside_a_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-4  # there the product's rounding may decide
    assert (off[~beside_a_tie] == 0).all()
    assert (off <= scales).all()
    assert (np.abs(stands_for.numpy() - values) <= (0.5 + 127 * 2**-8) * scales).all()
    np.testing.assert_array_equal(Int8().decode(sent), stands_for)


def test_float16_sends_halves():
    values = np.array([[1.0, 1 / 3, 65504.0, 1e6, -0.0]], np.float32)
    sent, stands_for = Float16().encode(tf.constant(values))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(sent, values.astype(np.float16))
    np.testing.assert_array_equal(stands_for, sent.numpy().astype(np.float32))
    np.testing.assert_array_equal(Float16().encode(sent)[0], sent)  # halves as they are


@pytest.mark.parametrize("encoding", [Float16(), Int8(), Signs(), Signs(root_mean_square=True)])
def test_what_is_owed_is_what_was_not_sent(encoding):
    values, owed = numbers(), numbers()[::-1] / 3
    sent, then = encode_owing(encoding, tf.constant(values), tf.constant(owed))
    total = values + owed
    with np.errstate(invalid="ignore"):  # halves overflow
        expected = total - encoding.decode(sent).numpy()
    np.testing.assert_allclose(then, expected, rtol=1e-6)
    np.testing.assert_array_equal(sent, encoding.encode(tf.constant(total))[0])


@pytest.mark.parametrize("encoding", [Float16(), Int8()])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 77, NUMBERS - 1])
def test_what_is_not_finite_arrives_as_not_finite(encoding, value, place):
    values = np.full((1, NUMBERS), 1e-3, np.float32)
    values[0, place] = value
    arrived = encoding.decode(encoding.encode(tf.constant(values))[0]).numpy()
    block = slice(place // BLOCK * BLOCK, (place // BLOCK + 1) * BLOCK)
    assert not np.isfinite(arrived[0, place])
    assert np.isfinite(np.delete(arrived, np.arange(NUMBERS)[block], 1)).all()


@pytest.mark.parametrize(("encoding", "wire"), [(Float16(), "float16"), (Int8(), "int8")])
def test_the_bytes_are_those_that_are_sent_and_those_that_plans_count(encoding, wire):
    sent, _ = encoding.encode(tf.constant(numbers()[:1]))
    assert sent.shape[1] * sent.dtype.size == encoding.sent_bytes(NUMBERS) == NUMBER_BYTES[wire] * NUMBERS
