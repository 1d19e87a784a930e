"""Numbers as one bit each: bits, scales and what does not come through."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.exchange.compressed.compressed_sums import Signs
from bert_horovod.exchange.two_step import BLOCK


def encoded(values: np.ndarray, fused: bool = True, **how) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is sent, what it stands for, and what arrives."""
    blocks = values.size // BLOCK
    signs = Signs(**{"groups": np.arange(blocks), "numbers": np.full(blocks, BLOCK), "fused": fused} | how)
    sent, stands_for = signs.encode(values)
    assert sent.shape == (len(values), signs.sent_bytes(values.shape[1]))
    return sent.numpy(), stands_for.numpy(), signs.decode(sent).numpy()


def numbers(rows: int, blocks: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, blocks * BLOCK)).astype(np.float32)


@pytest.mark.parametrize("blocks", [1, 3, 8, 16])
@pytest.mark.parametrize("fused", [False, True])
def test_a_number_arrives_as_its_sign_times_the_mean_magnitude_of_its_block(blocks, fused):
    values = numbers(2, blocks)
    _, stands_for, arrived = encoded(values, fused)
    scales = np.abs(values.reshape(2, blocks, BLOCK)).mean(2, keepdims=True)
    expected = np.where(values.reshape(2, blocks, BLOCK) >= 0, scales, -scales).reshape(values.shape)
    np.testing.assert_allclose(arrived, expected, rtol=2.0**-8)  # bfloat16
    np.testing.assert_array_equal(arrived, stands_for)


def test_a_bit_is_at_its_place():
    values = -np.ones((1, BLOCK), np.float32)
    values[0, 3 * BLOCK // 8 + 5] = 1
    sent, *_ = encoded(values)
    np.testing.assert_array_equal(np.nonzero(sent[0, : BLOCK // 8])[0], [5])
    assert sent[0, 5] == 1 << 3


def test_zeros_are_positive_and_blocks_of_zeros_arrive_as_zeros():
    values = numbers(1, 2)
    values[0, 7], values[0, BLOCK:] = 0, 0
    *_, arrived = encoded(values)
    assert arrived[0, 7] > 0
    assert not arrived[0, BLOCK:].any()


def test_padding_does_not_count():
    values = numbers(1, 2)
    values[0, BLOCK + 3 :] = 0
    *_, arrived = encoded(values, numbers=np.array([BLOCK, 3]))
    np.testing.assert_allclose(np.abs(arrived[0, BLOCK]), np.abs(values[0, BLOCK : BLOCK + 3]).mean(), rtol=2.0**-8)


@pytest.mark.parametrize("groups", [np.arange(2), np.zeros(2, np.int32)])
def test_what_is_owed_for_padding_does_not_come_back(groups):
    counted = 3
    signs = Signs(groups, np.array([0, counted]))
    values = numbers(1, 2)
    values[0, :BLOCK] = values[0, BLOCK + counted :] = 0
    owed, total = np.zeros_like(values), np.zeros_like(values)
    for _ in range(50):
        sent, owed = signs.encode_owing(tf.constant(values), owed)
        total += signs.decode(sent).numpy()
    real = slice(BLOCK, BLOCK + counted)
    largest = np.abs(values).max()
    assert np.abs(owed.numpy()[0, real]).max() < 10 * largest
    np.testing.assert_allclose(total[0, real] / 50, values[0, real], atol=10 * largest / 50)


def test_blocks_of_a_group_share_a_scale():
    values = numbers(2, 2) * np.repeat(np.float32([1, 2, 4, 8]), BLOCK).reshape(2, -1)
    blocks = values.reshape(4, BLOCK)
    *_, arrived = encoded(values, groups=np.array([0, 0, 1, 0]))
    arrived = np.abs(arrived.reshape(4, BLOCK)[:, 0])
    for members in ([0, 1, 3], [2]):
        np.testing.assert_allclose(arrived[members], np.abs(blocks[members]).mean(), rtol=2.0**-8)


def test_blocks_of_zeros_stay_out_of_their_groups_scale():
    values = numbers(1, 3)
    values[0, BLOCK : 2 * BLOCK] = 0
    *_, arrived = encoded(values, groups=np.zeros(3, np.int32))
    expected = np.abs(values[values != 0]).mean()
    np.testing.assert_allclose(np.abs(arrived[0, ::BLOCK]), [expected, 0, expected], rtol=2.0**-8)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("groups", [np.arange(2), np.zeros(2, np.int32)])
def test_what_is_not_finite_does_not_look_finite_when_it_arrives(bad, groups):
    values = numbers(1, 2)
    values[0, 5] = bad
    *_, arrived = encoded(values, groups=groups)
    assert not np.isfinite(arrived[0, :BLOCK]).any()
