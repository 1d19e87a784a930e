"""XLA for single functions."""

import functools
from collections.abc import Callable

import tensorflow as tf

# TensorFlow takes a kernel that is traced for a handful of shapes, once each, for a mistake.
tf.get_logger().addFilter(lambda record: "triggered tf.function retracing" not in str(record.msg))


@functools.cache
def compiled(function: Callable) -> Callable:
    """The function compiled by XLA: one program for all callers with equal shapes and Python arguments."""
    return tf.function(function, jit_compile=True, autograph=False)
