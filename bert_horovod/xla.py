"""XLA for single functions."""

import functools
from collections.abc import Callable

import tensorflow as tf


@functools.cache
def compiled(function: Callable) -> Callable:
    """The function compiled by XLA: one program for all callers with equal shapes and Python arguments."""
    return tf.function(function, jit_compile=True, autograph=False)
