"""Dropout with masks that do not depend on how a global batch is split.

Masks come from random bytes of the Philox generator. Its key is made of (seed, step); its counter holds the site (the
dropout's number in the model) and the row of the global batch. So a row gets the same mask in any micro-batch and on
any rank, with XLA and without.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_horovod.runtime import lazy_tensorflow as tf

PHILOX = 1  # Philox's number in TensorFlow's stateless random operations
BYTES_PER_BLOCK = 16  # one step of the Philox counter yields four uint32


class DropoutState(NamedTuple):
    """Philox key and first row of a micro-batch: with site and rate they determine its dropout masks."""

    key: tf.Tensor  # uint64 [1], a function of (seed, step)
    first_row: tf.Tensor  # uint64 scalar: index of the first row in the global batch


def random_bytes(
    shape: list[int], rate: float, site: int | tf.Tensor, dropout: DropoutState | None
) -> tf.Tensor | None:
    """Random bytes for one dropout: `dropped` drops an element where its byte is below the threshold.

    Args:
        shape: [rows, ...], all sizes known.
        rate: 0 to 0.9.
        site: the dropout's number in the model; each site has its own masks.
        dropout: None outside training.

    Returns:
        uint8 of `shape`; None if dropout is off.
    """
    if dropout is None or threshold(rate) == 0:
        return None
    rows, *row_shape = shape
    row_bytes = tf.TensorShape(row_shape).num_elements()
    blocks = -(-row_bytes // BYTES_PER_BLOCK)
    counter = tf.stack([dropout.first_row * blocks, tf.cast(site, tf.uint64)])
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[rows, blocks * 4], key=dropout.key, counter=counter, alg=PHILOX, dtype=tf.uint32
    )
    # (rows, blocks * 4) words to (rows, blocks * 16) bytes
    padded = tf.reshape(tf.bitcast(words, tf.uint8), [rows, blocks * BYTES_PER_BLOCK])
    return tf.reshape(padded[:, :row_bytes], shape)


def dropped(x: tf.Tensor, rate: float, draws: tf.Tensor | None) -> tf.Tensor:
    """Set elements to zero with probability round(256 rate) / 256 and scale the others, so that the mean stays.

    The function is linear in x; applied to a gradient of its result, it returns the gradient of x.

    Args:
        x: any shape.
        rate: 0 to 0.9.
        draws: `random_bytes`, as many as x has elements; None: x is returned unchanged.
    """
    if draws is None:
        return x
    return tf.where(
        kept(rate, tf.reshape(draws, x.shape)), x * tf.constant(keep_scale(rate), x.dtype), tf.zeros([], x.dtype)
    )


def kept(rate: float, draws: tf.Tensor) -> tf.Tensor:
    """True where dropout keeps the element: bool of the draws' shape."""
    return draws >= tf.constant(threshold(rate), tf.uint8)


def keep_scale(rate: float) -> float:
    """The factor of the elements that dropout keeps."""
    return 256 / (256 - threshold(rate))


def threshold(rate: float) -> int:
    """Random bytes below it drop an element; 0: nothing is dropped."""
    return round(rate * 256)
