"""Compile single functions with XLA."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType

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
