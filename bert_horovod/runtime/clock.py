"""The time of day inside a graph."""

import time

import numpy as np
import tensorflow as tf


def clock(after: list[tf.Tensor]) -> tf.Tensor:
    """When the last of these tensors existed, in seconds since the epoch; float64 scalar.

    tf.timestamp would do, but for this: it is stateful, and a tf.function runs such operations one after another in
    the order of their making, whatever they wait for.
    """
    with tf.control_dependencies(after):
        one = tf.reshape(after[-1], [-1])[:1]  # an input: two clocks without any would be taken for one
        return tf.ensure_shape(tf.numpy_function(_now, [one], tf.float64, stateful=False), [])


def _now(_: np.ndarray) -> np.float64:
    return np.float64(time.time())
