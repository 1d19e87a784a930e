"""Encodings: numbers on the wire in fewer bytes than float32's four.

    float16   2 bytes a number
    int8      q = round(y / s) with a scale s = max |y| / 127 a block: 1 byte, and 2 of scale a block
    signs     b sgn(y) with a scale b, sgn(0) = +1: 1 bit, and 2 bytes of scale a block; see signs.py

A block is BLOCK consecutive numbers. A block of zeros has scale 0 and is decoded to zeros. Zheng, Huang & Kwok 2019
(arXiv 1905.10936) use the mean magnitude of a block as its scale; their section 2 shows that one scale for all blocks
has a larger error. Scales are bfloat16, which has float32's range; error feedback includes the rounding of scales.
"""

from __future__ import annotations

from typing import Protocol

from bert_horovod.costs.link import BLOCK
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

_SCALE_BYTES = 2
# float32 x + _ROUNDS, for |x| < 2^22, is rounded to a whole number: its bits as int32 are _ROUNDS_BITS + round(x).
_ROUNDS = 1.5 * 2.0**23
_ROUNDS_BITS = 0x4B400000


class Encoding(Protocol):
    """Encodes and decodes rows of numbers, each row alone; the length of rows is a multiple of BLOCK.

    An encoding may also have a method `encode_owing`: the function of that name in one pass over memory.
    """

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode float32 [rows, n]: the encoded rows, any dtype [rows, width], and their decoded values [rows, n]."""

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        """Decode [rows, width] to float32 [rows, n]."""

    def sent_bytes(self, numbers: int) -> int:
        """Bytes of so many encoded numbers, a multiple of BLOCK."""


def encode_owing(encoding: Encoding, values: tf.Tensor, owed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Encode values + owed, float32 [rows, n]; returns the encoded rows and their error, float32 [rows, n].

    `owed` is the error of the last step. The new error is values + owed - the decoded values.
    """
    in_one_pass = getattr(encoding, "encode_owing", None)
    if in_one_pass is not None:
        return in_one_pass(values, owed)
    values += owed
    sent, stands_for = encoding.encode(values)
    return sent, values - stands_for


class Float16:
    """Float16; a number that overflows is decoded as infinite. `values` may be float16 already."""

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sent = compiled(_to_halves)(values)
        return sent, self.decode(sent)

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        return tf.cast(sent, tf.float32)

    def sent_bytes(self, numbers: int) -> int:
        return 2 * numbers


class Int8:
    """int8: round(y * (1 / s)) with the block's scale s, ties to even."""

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        *parts, stands_for = compiled(_encode_int8)(values)
        return tf.concat(parts, 1), stands_for

    def encode_owing(self, values: tf.Tensor, owed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        *parts, owed = compiled(_encode_int8)(values, owed)
        return tf.concat(parts, 1), owed

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        return compiled(_decode_int8)(sent)

    def sent_bytes(self, numbers: int) -> int:
        return numbers + numbers // BLOCK * _SCALE_BYTES


def _to_halves(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float16)


def _encode_int8(values: tf.Tensor, owed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Encode float32 [rows, n]: numbers, uint8 [rows, n]; scales' bytes, uint8 [rows, 2 blocks]; decoded values.

    With `owed`, values + owed are encoded, and the error stands in place of the decoded values. The caller joins
    numbers and scales, because XLA's concatenation takes longer than all other work here.
    """
    if owed is not None:
        values += owed
    rows = values.shape[0]
    blocks = tf.reshape(values, [rows, -1, BLOCK])
    # If a number is not finite, its block's scale is not finite, so that the receiver sees it.
    scale_bits, scale = _bfloat16(_largest(blocks) / 127)
    steps = tf.clip_by_value(blocks * tf.math.divide_no_nan(1.0, scale)[:, :, None], -127.0, 127.0)
    # Subtracted as bits, because XLA would simplify x + _ROUNDS - _ROUNDS to x.
    steps = tf.bitcast(steps + _ROUNDS, tf.int32) - _ROUNDS_BITS
    stands_for = tf.reshape(tf.cast(steps, tf.float32) * scale[:, :, None], [rows, -1])
    sent = tf.reshape(tf.bitcast(tf.cast(steps, tf.int8), tf.uint8), [rows, -1])
    return sent, scale_bits, stands_for if owed is None else values - stands_for


def _largest(blocks: tf.Tensor) -> tf.Tensor:
    """The largest magnitude of each block: float32 [..., BLOCK] to [...]; not finite if a number of the block is not.

    The maximum is taken of the bits as integers, which have the same order as the magnitudes, with NaN last. XLA
    vectorises only the maximum of integers, and its maximum of floats may lose a NaN.
    """
    parts = tf.split(tf.bitwise.bitwise_and(tf.bitcast(blocks, tf.int32), 0x7FFFFFFF), 8, -1)
    while len(parts) > 1:
        parts = [tf.maximum(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return tf.bitcast(tf.reduce_max(parts[0], -1), tf.float32)


def _decode_int8(sent: tf.Tensor) -> tf.Tensor:
    rows, blocks = sent.shape[0], sent.shape[1] // (BLOCK + _SCALE_BYTES)
    steps, scale_bits = tf.split(sent, [blocks * BLOCK, blocks * _SCALE_BYTES], 1)
    steps = tf.reshape(tf.cast(tf.bitcast(steps, tf.int8), tf.float32), [rows, blocks, BLOCK])
    return tf.reshape(steps * _scale(scale_bits)[:, :, None], [rows, -1])


def _bfloat16(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Round float32 [rows, blocks] to bfloat16: as bytes, uint8 [rows, 2 blocks], and cast back to float32."""
    rounded = tf.cast(values, tf.bfloat16)
    return tf.reshape(tf.bitcast(rounded, tf.uint8), [values.shape[0], -1]), tf.cast(rounded, tf.float32)


def _scale(scale_bits: tf.Tensor) -> tf.Tensor:
    """Scales from their bytes: uint8 [rows, 2 blocks] to float32 [rows, blocks]."""
    pairs = tf.reshape(scale_bits, [scale_bits.shape[0], -1, _SCALE_BYTES])
    return tf.cast(tf.bitcast(pairs, tf.bfloat16), tf.float32)
