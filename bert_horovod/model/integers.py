"""int32 arrays that stay on the device: where there is a GPU, TensorFlow reshapes, joins and adds int32 on the host.

A copy to the host and back would make the host wait for the step before.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_horovod.runtime import lazy_tensorflow as tf


def reshaped(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """tf.reshape of int32, or of any other 4-byte dtype."""
    return tf.bitcast(tf.reshape(tf.bitcast(x, tf.float32), shape), x.dtype)


def joined(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """tf.concat of int32."""
    return tf.bitcast(tf.concat([tf.bitcast(tensor, tf.float32) for tensor in tensors], axis), tensors[0].dtype)


def places_in_rows(positions: tf.Tensor, length: int) -> tf.Tensor:
    """The places in a list of rows [rows * length] of positions in each row, int32 [rows, places]: [rows * places]."""
    rows = positions.shape[0]
    assert rows * length <= 1 << 24, "float32 counts no further"
    places = tf.cast(positions, tf.float32) + tf.range(0.0, float(rows * length), float(length))[:, None]
    return tf.cast(tf.reshape(places, [-1]), tf.int32)
