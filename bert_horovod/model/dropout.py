"""Dropout whose masks do not depend on the layout of the work.

A mask compares raw Philox bytes, keyed by (seed, step), with a counter that names the site (layer and place in it)
and the row of the global batch. So a row gets the same mask whatever micro-batch or rank works on it, inside XLA and
outside.
"""

from typing import NamedTuple

import tensorflow as tf

PHILOX = 1  # the algorithm's number in TensorFlow's stateless random operations
BYTES_PER_BLOCK = 16  # one step of the Philox counter yields four uint32


class DropoutState(NamedTuple):
    """What the masks of a micro-batch are made of."""

    key: tf.Tensor  # uint64 [1], a function of (seed, step)
    first_row: tf.Tensor  # uint64 scalar: the first row's place in the global batch


def random_bytes(
    shape: list[int], rate: float, site: int | tf.Tensor, dropout: DropoutState | None
) -> tf.Tensor | None:
    """Random bytes for one dropout: uint8 of a shape [rows, ...]; `dropped` drops an element where its byte is low.

    Args:
      shape: [rows, ...], all known.
      rate: 0 to 0.9.
      site: which dropout of the model this is; each has masks of its own.
      dropout: None outside training.

    Returns:
      None if nothing is dropped.
    """
    if dropout is None or _threshold(rate) == 0:
        return None
    rows, *row_shape = shape
    row_bytes = tf.TensorShape(row_shape).num_elements()
    blocks = -(-row_bytes // BYTES_PER_BLOCK)
    counter = tf.stack([dropout.first_row * blocks, tf.cast(site, tf.uint64)])
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[rows, blocks * 4], key=dropout.key, counter=counter, alg=PHILOX, dtype=tf.uint32
    )
    found = tf.reshape(tf.bitcast(words, tf.uint8), [rows, blocks * BYTES_PER_BLOCK])
    return tf.reshape(found[:, :row_bytes], shape)


def dropped(x: tf.Tensor, rate: float, draws: tf.Tensor | None) -> tf.Tensor:
    """Set elements to zero with probability round(256 rate) / 256 and scale the rest so that the mean stays.

    Args:
      x: any shape; being linear in x, this is also its own gradient.
      rate: 0 to 0.9.
      draws: `random_bytes` of x's number of elements; None leaves x as it is.
    """
    if draws is None:
        return x
    return tf.where(
        kept(rate, tf.reshape(draws, x.shape)), x * tf.constant(keep_scale(rate), x.dtype), tf.zeros([], x.dtype)
    )


def kept(rate: float, draws: tf.Tensor) -> tf.Tensor:
    """Which elements stay: bool of the draws' shape."""
    return draws >= tf.constant(_threshold(rate), tf.uint8)


def keep_scale(rate: float) -> float:
    """What those that stay are multiplied by."""
    return 256 / (256 - _threshold(rate))


def _threshold(rate: float) -> int:
    return round(rate * 256)
