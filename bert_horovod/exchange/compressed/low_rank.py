"""Low-rank parts of matrices: orthonormal bases and products, for n matrices of one shape at once.

A matrix M [rows, columns] is projected onto the span of a factor: with B, an orthonormal basis of the left factor's
columns, to B (B^T M), whose right factor is M^T B; with a basis of the right factor's columns to (M B) B^T, whose left
factor is M B. Factors hold vectors as columns: [rows, rank] and [columns, rank].
"""

from __future__ import annotations

from bert_horovod.runtime import lazy_tensorflow as tf

_LEAST = 1e-6  # of the factor's largest number: what is added to its diagonal


def orthonormal(factors: tf.Tensor) -> tf.Tensor:
    """Orthonormal bases of the columns of factors, float32 [n, rows, rank]: float32 of the same shape.

    Columns that depend on others, or are zero, are replaced by some other directions, so that no rank is lost for ever.
    This is a Cholesky QR in float64, done twice: with a few products of small matrices, a GPU makes all bases of a
    shape at once.
    """
    wide = tf.cast(factors, tf.float64)
    largest = tf.reduce_max(tf.abs(wide), [1, 2], keepdims=True)
    wide = tf.math.divide_no_nan(wide, largest) + _LEAST * tf.eye(*factors.shape[1:], dtype=tf.float64)
    for _ in range(2):
        lower = tf.linalg.cholesky(tf.matmul(wide, wide, transpose_a=True))
        wide = tf.linalg.matrix_transpose(tf.linalg.triangular_solve(lower, tf.linalg.matrix_transpose(wide)))
    return tf.cast(wide, tf.float32)


def product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """left @ right: float32 [n, rows, rank] and [n, rank, columns] to [n, rows, columns]."""
    # For one column and one row TensorFlow's matrix product takes ten times longer on a CPU.
    return left * right if left.shape[2] == 1 else tf.matmul(left, right)


def remainder(matrices: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """matrices - left @ right: float32 [n, rows, columns]."""
    return matrices - product(left, right)
