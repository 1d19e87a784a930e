"""The sum of a bucket over ranks in two steps, each of which sends encoded numbers, and the encodings.

    float16   2 bytes a number
    int8      q = round(y / s) with a scale s = max |y| / 127 a block: 1 byte, and 2 of scale a block
    signs     b sgn(y) with a scale b, sgn(0) = +1: 1 bit, and 2 bytes of scale a block; see compressed_sums.py

A block is BLOCK consecutive numbers. A block of zeros has scale 0 and is decoded to zeros. Zheng, Huang & Kwok 2019
(arXiv 1905.10936) use the mean magnitude of a block as its scale; their section 2 shows that one scale for all blocks
has a larger error. Scales are bfloat16, which has float32's range; error feedback includes the rounding of scales.

The two steps:

    y_i = x_i + e_i                                   e_i: rank i's worker error, left by former steps
    all-to-all: rank j gets its part of each rank's y_i, encoded; e_i = y_i - decoded(encoded(y_i))
    z_j = sum over i of the decoded parts + s_j       in float32, in the order of ranks; s_j: rank j's server error
    all-gather: every rank gets the parts z_j, encoded; s_j = z_j - decoded(encoded(z_j))

(DeepSpeed's compressed all-reduce; Tang et al. 2021, arXiv 2102.02888.) The result has the same bits on all ranks and
does not depend on timing. With error feedback the sum of results over steps is the sum of all x_i, minus the errors
that are left at the end. Without it (errors = None) rounding errors are lost.

If hosts have several ranks, the ranks of a host first sum in float32, and each takes a part of the sum. A rank sends
its part only to the ranks of the same place in other hosts, so that a number leaves a host once, encoded. At the end
the ranks of a host gather the parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import BLOCK
from bert_horovod.exchange.owed import part_size
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


class Errors(NamedTuple):
    """A rank's encoding errors, float32, which it adds to the next sum."""

    worker: tf.Tensor  # [across.size, part]: errors of the rows that it sends
    server: tf.Tensor  # [part]: errors of the sums that it makes


class TwoStep:
    """Sums one bucket of so many numbers; `name`: prefix of the names of its collectives."""

    def __init__(self, world: World, numbers: int, name: str) -> None:
        self._inside, self._across = world.join_hosts()
        self._world_size = world.size
        self._numbers = numbers
        self._name = name
        parts = self._inside.size * self._across.size
        self.part = part_size(numbers, parts)  # how many sums a rank makes

    @property
    def worker_shape(self) -> tuple[int, int]:
        """The shape of Errors.worker."""
        return self._across.size, self.part

    @property
    def padded(self) -> int:
        """Numbers of the bucket with its padding: zeros at the end, so that all parts are equal."""
        return self._inside.size * self._across.size * self.part

    def of_rank(self, of_bucket: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of an array over the padded bucket for this rank's rows, flat, and for the sums that it makes.

        `of_bucket`: [parts * part], or shorter by a divisor, such as one number a block.
        """
        own_errors = of_bucket.reshape(self._inside.size, -1)[self._inside.rank]
        return own_errors, own_errors.reshape(self._across.size, -1)[self._across.rank]

    def by_number(self, errors: Errors) -> tf.Tensor:
        """This rank's errors at the places of their numbers, float32 [numbers]: to be added to its next values.

        An error of a sum is then a part of its maker's next values. Only the sum of all ranks' errors counts.
        """
        inside, across = self._inside, self._across
        rows = tf.tensor_scatter_nd_add(errors.worker, [[across.rank]], errors.server[None])
        own = across.size * self.part
        before = inside.rank * own
        return tf.pad(tf.reshape(rows, [-1]), [[before, self.padded - before - own]])[: self._numbers]

    def sent_bytes(self, encoding: Encoding) -> float:
        """Bytes that a rank sends to other hosts for one sum."""
        return 2 * (self._across.size - 1) * encoding.sent_bytes(self.part)

    def sum(
        self,
        values: tf.Tensor,
        encoding: Encoding,
        errors: Errors | None = None,
        encoding_of_sums: Encoding | None = None,
    ) -> tuple[tf.Tensor, Errors | None]:
        """The sum over ranks of float32 [numbers], and the new errors, which the caller keeps or drops.

        In a world of one nothing is encoded. `encoding_of_sums` is for the second step; None: same as `encoding`.
        """
        if self._world_size == 1:
            return values, errors
        gathered, errors = self.sum_encoded(values, encoding, errors, encoding_of_sums)
        return tf.reshape(encoding.decode(gathered), [-1])[: self._numbers], errors

    def sum_encoded(
        self,
        values: tf.Tensor,
        encoding: Encoding,
        errors: Errors | None = None,
        encoding_of_sums: Encoding | None = None,
    ) -> tuple[tf.Tensor, Errors | None]:
        """Like `sum`, with several ranks, but the result is still encoded: [parts, width].

        `values`: float32 [numbers] or, padded with zeros, [padded]; for Float16 also float16. `errors`: of the last
        step; None: no error feedback.
        """
        inside, across = self._inside, self._across
        if values.shape[0] != self.padded:
            values = tf.pad(values, [[0, self.padded - self._numbers]])
        if inside.size > 1:
            values = inside.all_reduce(tf.cast(values, tf.float32), f"{self._name}.inside")
            values = tf.reshape(values, [inside.size, -1])[inside.rank]  # (across.size * part,)
        parts = tf.reshape(values, [across.size, self.part])
        sent, worker = _encode(encoding, parts, errors and errors.worker)
        name = f"{self._name}.parts"
        if across.size == 2:
            came = self._by_rank(sent[across.rank], across.swap(sent[1 - across.rank], name))
        else:
            came = tf.ensure_shape(across.all_to_all(sent, name), sent.shape)
        sums = _sum(encoding)(came)
        sums_sent, server = _encode(encoding_of_sums or encoding, sums, errors and errors.server[None])
        name = f"{self._name}.sums"
        if across.size == 2:
            gathered = self._by_rank(sums_sent[0], across.swap(sums_sent[0], name))
        else:
            gathered = tf.ensure_shape(across.all_gather(sums_sent, name), sent.shape)
        if inside.size > 1:
            gathered = inside.all_gather(gathered, f"{self._name}.host")
            gathered = tf.ensure_shape(gathered, [inside.size * across.size, sent.shape[1]])
        return gathered, errors and Errors(worker, server[0])

    def _by_rank(self, own: tf.Tensor, theirs: tf.Tensor) -> tf.Tensor:
        """Stack this rank's and the other rank's row [n] in the order of the two hosts: [2, n]."""
        return tf.stack([own, theirs] if self._across.rank == 0 else [theirs, own])


def _encode(encoding: Encoding, values: tf.Tensor, owed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Encode values + owed: the encoded rows and the new error; without `owed` the error is None."""
    if owed is None:
        return encoding.encode(values)[0], None
    return encode_owing(encoding, values, owed)


@functools.cache
def _sum(encoding: Encoding) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that sums encoded rows: [rows, width] to float32 [1, n].

    It adds in the order of rows, so that rounding is the same on every machine, and decodes in the same pass.
    """

    def sum_rows(sent: tf.Tensor) -> tf.Tensor:
        # Split before they are decoded: XLA does not vectorise the decoding of all rows where only one is read.
        return functools.reduce(tf.add, [encoding.decode(row) for row in tf.split(sent, sent.shape[0])])

    return compiled(sum_rows)
