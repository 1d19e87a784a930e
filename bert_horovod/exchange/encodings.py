"""How numbers travel between ranks in fewer bytes than float32's four.

    float16   scaled by a power of two that the caller gives: 2 bytes a number
    int8      q = round(y / s) with a scale s = max |y| / 127 a block: 1 byte, and 2 of scale a block
    signs     b sgn(y) with a scale b, sgn(0) = +1: 1 bit, and 2 bytes of scale a block; see signs.py

A block is BLOCK consecutive numbers. One of zeros has scale 0 and arrives as zeros. Blockwise scales of the mean
magnitude: Zheng, Huang & Kwok 2019 (arXiv 1905.10936), with the larger error of one scale for all in section 2.
Scales are bfloat16, which has float32's range: what their rounding loses is part of the error that is fed back.
"""

from typing import Protocol

import tensorflow as tf

from bert_horovod.runtime.xla import compiled

BLOCK = 256  # numbers that share a scale; it divides every hidden size in use, so that blocks do not cross rows
_SCALE_BYTES = 2


class Encoding(Protocol):
    """Numbers to what is sent, and back. Rows are encoded each for itself; their length is a multiple of BLOCK."""

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Of float32 [rows, n]: what is sent, of any dtype [rows, width], and what it stands for, float32 [rows, n]."""

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        """What [rows, width] stands for, float32 [rows, n]."""

    def sent_bytes(self, numbers: int) -> int:
        """Of so many numbers, a multiple of BLOCK."""


class Float16:
    """Half precision of `scale` times the numbers; one that overflows arrives as infinite."""

    def __init__(self, scale: tf.Tensor | float = 1.0) -> None:
        self._scale = scale

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sent = tf.cast(values * self._scale, tf.float16)
        return sent, self.decode(sent)

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        return tf.cast(sent, tf.float32) / self._scale

    def sent_bytes(self, numbers: int) -> int:
        return 2 * numbers


class Int8:
    """Eight bits a number, rounded to the nearest, ties to even."""

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return compiled(_encode_int8)(values)

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        return compiled(_decode_int8)(sent)

    def sent_bytes(self, numbers: int) -> int:
        return numbers + numbers // BLOCK * _SCALE_BYTES


def _encode_int8(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rows = values.shape[0]
    blocks = tf.reshape(values, [rows, -1, BLOCK])
    scale_bits, scale = _bfloat16(tf.reduce_max(tf.abs(blocks), 2) / 127)
    steps = tf.clip_by_value(tf.round(tf.math.divide_no_nan(blocks, scale[:, :, None])), -127, 127)
    # What is not finite must not look finite when it arrives: its block's scale is not finite then.
    sent = tf.reshape(tf.bitcast(tf.cast(steps, tf.int8), tf.uint8), [rows, -1])
    return tf.concat([sent, scale_bits], 1), tf.reshape(steps * scale[:, :, None], [rows, -1])


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
