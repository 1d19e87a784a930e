"""The time of day inside a graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf


def clock(after: list[tf.Tensor]) -> tf.Tensor:
    """The time when the last of these tensors was computed, in seconds since the epoch; float64 scalar.

    Not tf.timestamp, because it is stateful: a tf.function runs stateful operations one after another in the order of
    their creation, whichever tensors they wait for.
    """
    with tf.control_dependencies(after):
        one = tf.reshape(after[-1], [-1])[:1]  # TensorFlow merges identical operations without inputs
        return tf.ensure_shape(tf.numpy_function(_now, [one], tf.float64, stateful=False), [])


def no_clock(_after: list[tf.Tensor]) -> tf.Tensor:
    """Takes the place of `clock` if no times are needed: returns 0, and calls no Python from the graph."""
    return tf.constant(0.0, tf.float64)


Clock = Callable[[list["tf.Tensor"]], "tf.Tensor"]


def _now(_: np.ndarray) -> np.float64:
    return np.float64(time.time())
