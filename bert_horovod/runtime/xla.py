"""Compile single functions with XLA, and the time of day inside a graph."""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.quiet import native_messages_held_back

# TensorFlow warns about a function that it traces for several shapes; here that is no mistake: once for each shape.
logging.getLogger("tensorflow").addFilter(lambda record: "triggered tf.function retracing" not in str(record.msg))


@functools.cache
def compiled(function: Callable) -> Callable:
    """The function compiled by XLA: one program for all callers with equal shapes and Python arguments."""
    _start()
    return tf.function(function, jit_compile=True, autograph=False)


def read_back(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, which XLA does not compute a second time for what reads this; only inside a compiled function."""
    return operations().optimization_barrier(tensor)[0]


def operations() -> ModuleType:
    """XLA's own operations."""
    return importlib.import_module("tensorflow.compiler.tf2xla.python.xla")


@functools.cache
def _start() -> None:
    """Compile a tiny function, once: XLA prints its start-up messages now, held back, not between the run's lines."""
    with native_messages_held_back(), tf.init_scope():
        tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(tf.constant(0.0))


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
