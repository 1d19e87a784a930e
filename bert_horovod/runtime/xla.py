"""XLA for single functions."""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert_horovod.runtime.quiet import native_messages_held_back

# TensorFlow takes a kernel that is traced for a handful of shapes, once each, for a mistake.
tf.get_logger().addFilter(lambda record: "triggered tf.function retracing" not in str(record.msg))


@functools.cache
def compiled(function: Callable) -> Callable:
    """The function compiled by XLA: one program for all callers with equal shapes and Python arguments."""
    _start()
    return tf.function(function, jit_compile=True, autograph=False)


@functools.cache
def _start() -> None:
    """Compile something, once, so that each rank's XLA need not introduce itself amid the run's own lines."""
    with native_messages_held_back(), tf.init_scope():
        tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(tf.constant(0.0))
