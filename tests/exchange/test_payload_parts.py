"""Bases and low-rank products of several matrices at once.

The sum of one payload: the scale of the float16 wire.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.compressed.payload_parts import PayloadSum, orthonormal, product, remainder


def factors(kind: str, rows: int, rank: int) -> np.ndarray:
    factor = np.random.default_rng(0).standard_normal((rows, rank))
    if kind == "dependent":
        factor[:, 1:] = factor[:, :1]
    if kind == "steep":  # singular values from 1 to 1e-5
        factor *= np.logspace(0, -5, rank)
    return (factor * {"zero": 0.0, "tiny": 1e-30, "large": 1e30}.get(kind, 1.0)).astype(np.float32)


@pytest.mark.parametrize("rank", [1, 4, 64])
@pytest.mark.parametrize("kind", ["random", "dependent", "steep", "zero", "tiny", "large"])
def test_a_basis_is_orthonormal_and_has_the_columns_of_its_factor(kind, rank):
    stacked = np.stack([factors(kind, 300, rank), factors("random", 300, rank)])
    bases = orthonormal(tf.constant(stacked)).numpy().astype(np.float64)
    assert bases.shape == stacked.shape
    for factor, basis in zip(stacked.astype(np.float64), bases, strict=True):
        np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-5)
        left_over = factor - basis @ (basis.T @ factor)
        assert np.abs(left_over).max() <= 1e-5 * np.abs(factor).max()


@pytest.mark.parametrize("rank", [1, 3])
def test_products_and_remainders_are_those_of_each_matrix(rank):
    random = np.random.default_rng(1)
    left, right, matrices = (random.standard_normal(shape) for shape in ((2, 7, rank), (2, rank, 5), (2, 7, 5)))
    tensors = [tf.constant(each, tf.float32) for each in (matrices, left, right)]
    np.testing.assert_allclose(product(*tensors[1:]), left @ right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(remainder(*tensors), matrices - left @ right, rtol=1e-5, atol=1e-5)


def test_a_sum_may_be_a_thousand_times_as_large_as_the_one_before():
    payload_sum = PayloadSum(World(), 3, "float16", "toy")
    for numbers in ([1e-3, -2e-4, 0.0], [1.0, -0.5, 0.25]):
        total, lost = payload_sum.sum(tf.constant(numbers))
        assert lost is None
        np.testing.assert_allclose(total.numpy(), numbers, rtol=2.0**-11)


def test_after_an_overflow_the_next_sum_fits_and_the_scale_follows_small_numbers_in_the_end():
    payload_sum = PayloadSum(World(), 1, "float16", "toy")
    totals = [payload_sum.sum(tf.constant([1e3]))[0].numpy()[0] for _ in range(3)]
    assert not np.isfinite(totals[0])
    assert totals[2] == 1000.0
    for _ in range(40):
        total = payload_sum.sum(tf.constant([1e-7]))[0].numpy()[0]
    assert total == np.float32(np.float16(1e-7 * 2.0**34)) / 2.0**34
