"""Checksums of tensors: ranks compare these instead of the tensors."""

from __future__ import annotations

from bert_horovod.exchange.base import Gradients, Lookups
from bert_horovod.runtime import lazy_tensorflow as tf

_WORD_BYTES = 8


def checksum(tensor: tf.Tensor) -> tf.Tensor:
    """Checksum of floats of any dtype and shape: the sum of their bits, as int64 words; one flipped bit changes it."""
    flat = tf.reshape(tensor, [-1])
    in_word = _WORD_BYTES // flat.dtype.size
    missing = -flat.shape[0] % in_word
    if missing:
        flat = tf.pad(flat, [[0, missing]])
    return tf.reduce_sum(tf.bitcast(tf.reshape(flat, [-1, in_word]), tf.int64))


def gradient_checksums(gradients: Gradients, lookups: Lookups) -> dict[str, tf.Tensor]:
    """The checksum of each gradient, int64 scalars by name; looked-up rows have one beside that of their table."""
    sums = {name: checksum(gradient) for name, gradient in gradients.items()}
    return sums | {f"{name} (looked-up rows)": checksum(part.values) for name, part in lookups.items()}
