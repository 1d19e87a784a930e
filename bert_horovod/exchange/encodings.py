"""How numbers travel between ranks in fewer bytes than float32's four.

    float16   2 bytes a number
    int8      q = round(y / s) with a scale s = max |y| / 127 a block: 1 byte, and 2 of scale a block
    signs     b sgn(y) with a scale b, sgn(0) = +1: 1 bit, and 2 bytes of scale a block; see signs.py

A block is BLOCK consecutive numbers. One of zeros has scale 0 and arrives as zeros. Blockwise scales of the mean
magnitude: Zheng, Huang & Kwok 2019 (arXiv 1905.10936), with the larger error of one scale for all in section 2.
Scales are bfloat16, which has float32's range: what their rounding loses is part of the error that is fed back.
"""

from typing import Protocol

import tensorflow as tf

from bert_horovod.costs.link import BLOCK
from bert_horovod.runtime.xla import compiled

_SCALE_BYTES = 2
_ROUNDS = 1.5 * 2.0**23  # a number below 2^22 that is added to it is rounded, and is the difference of their bits
_ROUNDS_BITS = 0x4B400000


class Encoding(Protocol):
    """Numbers to what is sent, and back. Rows are encoded each for itself; their length is a multiple of BLOCK.

    An encoding may also have `encode_owing`, which does in one pass what the function of that name does.
    """

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Of float32 [rows, n]: what is sent, of any dtype [rows, width], and what it stands for, float32 [rows, n]."""

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        """What [rows, width] stands for, float32 [rows, n]."""

    def sent_bytes(self, numbers: int) -> int:
        """Of so many numbers, a multiple of BLOCK."""


def encode_owing(encoding: Encoding, values: tf.Tensor, owed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Encode `values + owed`, float32 [rows, n]; returns what is sent, and what is owed then, float32 [rows, n]."""
    in_one_pass = getattr(encoding, "encode_owing", None)
    if in_one_pass is not None:
        return in_one_pass(values, owed)
    values += owed
    sent, stands_for = encoding.encode(values)
    return sent, values - stands_for


class Float16:
    """Half precision; a number that overflows arrives as infinite. Halves are taken as they are."""

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sent = compiled(_to_halves)(values)
        return sent, self.decode(sent)

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        return tf.cast(sent, tf.float32)

    def sent_bytes(self, numbers: int) -> int:
        return 2 * numbers


class Int8:
    """Eight bits a number: the nearest to it times 1 / s, ties to even."""

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
    """Of float32 [rows, n]: uint8 [rows, n], their scales' bytes, and what they stand for, or what is owed then.

    The parts that are sent are joined by the caller, because XLA's concatenation takes longer than all else here.
    """
    if owed is not None:
        values += owed
    rows = values.shape[0]
    blocks = tf.reshape(values, [rows, -1, BLOCK])
    # What is not finite must not look finite when it arrives: its block's scale is not finite then.
    scale_bits, scale = _bfloat16(_largest(blocks) / 127)
    steps = tf.clip_by_value(blocks * tf.math.divide_no_nan(1.0, scale)[:, :, None], -127.0, 127.0)
    # Bits, because XLA would take the same number added and taken off again for nothing at all.
    steps = tf.bitcast(steps + _ROUNDS, tf.int32) - _ROUNDS_BITS
    stands_for = tf.reshape(tf.cast(steps, tf.float32) * scale[:, :, None], [rows, -1])
    sent = tf.reshape(tf.bitcast(tf.cast(steps, tf.int8), tf.uint8), [rows, -1])
    return sent, scale_bits, stands_for if owed is None else values - stands_for


def _largest(blocks: tf.Tensor) -> tf.Tensor:
    """The largest magnitude in each of float32 [..., BLOCK]; not finite where one number is not.

    Magnitudes are ordered as their bits are, NaN last, and integers' maxima are vectorised, where XLA's of floats are
    not, and may lose a NaN.
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
    """float32 [rows, blocks] rounded to bfloat16: uint8 [rows, 2 blocks], and float32 again."""
    rounded = tf.cast(values, tf.bfloat16)
    return tf.reshape(tf.bitcast(rounded, tf.uint8), [values.shape[0], -1]), tf.cast(rounded, tf.float32)


def _scale(scale_bits: tf.Tensor) -> tf.Tensor:
    """uint8 [rows, 2 blocks] to float32 [rows, blocks]."""
    pairs = tf.reshape(scale_bits, [scale_bits.shape[0], -1, _SCALE_BYTES])
    return tf.cast(tf.bitcast(pairs, tf.bfloat16), tf.float32)
