"""The tensors that forward keeps for backward, where forward and backward of a layer are two compiled programs.

TensorFlow's own gradient of a compiled function keeps too much: its forward also returns its arguments and constants
and returns some tensors twice, each a copy on the device, and backward asks the host for the constants. So here the
operations name what they keep. A forward program returns these tensors. A backward program traces forward once more,
with the kept tensors in place of the computed ones, so that the compiler drops whatever computes only them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bert_horovod.runtime import lazy_tensorflow as tf

# In a forward program a list, to which kept tensors are added; in a backward program an iterator over them; else None.
_kept: ContextVar[list[tf.Tensor] | Iterator[tf.Tensor] | None] = ContextVar("kept", default=None)


def keep(tensor: tf.Tensor) -> tf.Tensor:
    """Keep the tensor for backward. In a backward program: the tensor that forward kept; elsewhere: the argument."""
    kept = _kept.get()
    if isinstance(kept, list):
        kept.append(tensor)
    elif kept is not None:
        return _replaced(tensor, next(kept))
    return tensor


def _replaced(computed: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """The kept tensor, with the gradient of the computed one."""
    return tf.custom_gradient(lambda _: (kept, lambda dy: dy))(computed)


@contextmanager
def keeping() -> Iterator[list[tf.Tensor]]:
    """What `keep` gets within, in order."""
    kept: list[tf.Tensor] = []
    before = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(before)


@contextmanager
def instead(kept: list[tf.Tensor]) -> Iterator[None]:
    """Within, each call of `keep` returns the next of these tensors."""
    before = _kept.set(iter(kept))
    try:
        yield
    finally:
        _kept.reset(before)
