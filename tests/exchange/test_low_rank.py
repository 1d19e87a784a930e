"""Bases and low-rank products of several matrices at once."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.exchange.compressed.payload_parts import orthonormal, product, remainder


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
