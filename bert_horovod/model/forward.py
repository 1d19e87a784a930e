"""What encoder and heads share in a forward pass: sizes, cast weights, compute policy, dropout, the batch's tensors.

Dropout's masks do not depend on how a global batch is split. They come from random bytes of the Philox generator. Its
key is made of (seed, step); its counter holds the site (the dropout's number in the model) and the row of the global
batch. So a row gets the same mask in any micro-batch and on any rank, with XLA and without.

The tensors that forward keeps for backward, where forward and backward of a layer are two compiled programs.
TensorFlow's own gradient of a compiled function keeps too much: its forward also returns its arguments and constants
and returns some tensors twice, each a copy on the device, and backward asks the host for the constants. So here the
operations name what they keep. A forward program returns these tensors. A backward program traces forward once more,
with the kept tensors in place of the computed ones, so that the compiler drops whatever computes only them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf


@dataclass(frozen=True)
class ComputePolicy:
    """How a forward and backward pass is carried out."""

    # Of matrix products and of activations kept for backward; parameters stay float32.
    dtype: tf.DType = field(default_factory=lambda: tf.float32)
    xla: str = "off"  # "elementwise": compile the operations between matrix products; "layers": whole layers too
    recompute: str = "none"  # "attention" or "layer": backward computes it again, so that memory need not keep it
    kernels: str = "xla"  # "triton": compiled layers use gpu_kernels/ where these serve the shape


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

    uint8 of `shape`, which is [rows, ...], all sizes known; None if dropout is off, as outside training. The rate is 0
    to 0.9; each site has its own masks.
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

    The function is linear in x; applied to a gradient of its result, it returns the gradient of x. `draws`:
    `random_bytes`, as many as x has elements; None: x is returned unchanged.
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


@dataclass(frozen=True)
class Forward:
    """One forward pass: its sizes, cast weights, compute policy and dropout. Encoder and heads take it with a batch."""

    model: Model
    weights: dict[str, tf.Tensor]  # cast weights, see weights.py
    policy: ComputePolicy
    dropout: DropoutState | None = None  # None: no dropout

    def affine(self, name: str) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Weight and bias of a dense layer or a LayerNorm; `name` is a constant of parameters.py such as POOLER.

        The bias is None where the architecture has none.
        """
        return self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")

    def with_values(self, values: Iterable[tf.Tensor]) -> Forward:
        """The same pass with other weights, in the order of `weights`."""
        return dataclasses.replace(self, weights=dict(zip(self.weights, values, strict=True)))


FLOAT_BATCH = ("masked_weights", "sequence_weights", "weights", "targets")  # float32; other arrays of a batch are int32


def as_arrays(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A micro-batch's arrays in these dtypes."""
    return {name: np.asarray(array, np.float32 if name in FLOAT_BATCH else np.int32) for name, array in batch.items()}


def as_tensors(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """A micro-batch's arrays as tensors of these dtypes."""
    return {name: tf.constant(array) for name, array in as_arrays(batch).items()}


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
