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


def dropout(x: tf.Tensor, rate: float, site: int, state: DropoutState | None) -> tf.Tensor:
    """Set elements to zero with probability round(256 rate) / 256 and scale the rest so that the mean stays.

    Args:
      x: [rows, ...] with a static shape but for the rows.
      rate: 0 to 0.9; 0 leaves x as it is.
      site: which dropout of the model this is; each has masks of its own.
      state: None outside training.
    """
    threshold = round(rate * 256)
    if state is None or threshold == 0:
        return x
    row_shape = x.shape[1:]
    row_bytes = row_shape.num_elements()
    blocks = -(-row_bytes // BYTES_PER_BLOCK)
    rows = tf.shape(x)[0]
    counter = tf.stack([state.first_row * blocks, tf.constant(site, tf.uint64)])
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack([rows, blocks * 4]), key=state.key, counter=counter, alg=PHILOX, dtype=tf.uint32
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint8), [-1, blocks * BYTES_PER_BLOCK])[:, :row_bytes]
    keep = tf.reshape(draws, [-1, *row_shape]) >= tf.constant(threshold, tf.uint8)
    return tf.where(keep, x * tf.constant(256 / (256 - threshold), x.dtype), tf.zeros([], x.dtype))
