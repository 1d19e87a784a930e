"""Sums of flat buckets over ranks as signs, with error feedback; all 1-bit methods use them.

Of a moment m with the second moment v the numbers m / (sqrt(v) + eps) are sent (the payload), with a scale a tensor:
this is the update itself, so no number moves further than the scale. The published rule sends m, with one scale a
bucket (Tang et al. 2021, arXiv 2102.02888). Numbers with v = 0, such as positions beyond the phase's length, have had
no gradient: they stay 0.

The encoding of numbers as signs: one bit a number, and a scale a block. A number y is decoded to b sgn(y), sgn(0) = +1,
with its block's scale b in bfloat16. All blocks of a group, a tensor's, have the scale b = mean |y|; blocks of zeros do
not count, and are decoded to zeros.

Bit k of byte j of a row of n numbers is the sign of number k n / 8 + j. So packing shifts and ors long contiguous runs;
XLA compiles only this form to vector instructions on a CPU. The blocks' scales follow the bits.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.two_step import BLOCK, Errors, TwoStep
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

_WORKER, _SERVER = "error.worker.", "error.server."


def payload(m: tf.Tensor, v: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The numbers to send of m; elementwise, as `moment`, to be called in compiled functions."""
    return tf.where(v > 0, m / (tf.sqrt(v) + epsilon), 0.0)


def moment(sent: tf.Tensor, v: tf.Tensor, epsilon: float) -> tf.Tensor:
    """m from the numbers that were sent: the inverse of `payload`; 0 where v is 0."""
    return tf.where(v > 0, sent * (tf.sqrt(v) + epsilon), 0.0)


class CompressedSums:
    """The sums of a plan's buckets. Whole buckets are copied only to be sent: all else works on their tensors.

    `name` is the prefix of the collectives' names. With `fused` XLA compiles the functions that read and write whole
    buckets.
    """

    def __init__(
        self, recipe: Recipe, world: World, shapes: dict[str, tuple[int, ...]], plan: BucketPlan, name: str, fused: bool
    ) -> None:
        self.compiled = compiled if fused else lambda function: function
        self._fused = fused
        self._world, self._shapes, self._buckets, self._name = world, shapes, plan.buckets, name
        self.epsilon = recipe.optimizer.epsilon
        self._encoded = world.size > 1
        # Of each bucket's tensors, in numbers.
        self.sizes = [tuple(math.prod(shapes[name]) for name in bucket) for bucket in plan.buckets]
        self._two_steps = [TwoStep(world, sum(sizes), f"{name}.{i}") for i, sizes in enumerate(self.sizes)]
        self._signs = [self._signs_of(i) for i in range(len(self.sizes))]
        self._errors: list[Errors | None] = [None] * len(self.sizes)

    def begin(self, state, fresh: bool) -> None:
        """Use this rank's errors from the state (runs.state.TrainingState), or start with zeros if `fresh`."""
        if fresh:  # another phase's errors may belong to other buckets
            for name in [name for name in state.per_rank if name.startswith((_WORKER, _SERVER))]:
                del state.per_rank[name]
        if self._encoded:
            self._errors = [
                Errors(state.own(f"{_WORKER}{i}", two_step.worker_shape), state.own(f"{_SERVER}{i}", (two_step.part,)))
                for i, two_step in enumerate(self._two_steps)
            ]

    def forget(self) -> None:
        """Set all errors to zero."""
        self.assign([errors and Errors(*(tf.zeros_like(error) for error in errors)) for errors in self._errors])

    def flat(self, i: int, tensors: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """The tensors of bucket i, each flat: float32 [numbers of the tensor]."""
        return [tf.cast(tf.reshape(tensors[name], [-1]), tf.float32) for name in self._buckets[i]]

    def named(self, i: int, flat: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tensors by parameter from the flat tensors of bucket i: the inverse of `flat`."""
        return {name: tf.reshape(part, self._shapes[name]) for name, part in zip(self._buckets[i], flat, strict=True)}

    def joined(self, i: int, flat: list[tf.Tensor]) -> tf.Tensor:
        """The flat tensors of bucket i as one, with the zeros that pad it if it will be encoded: for `sum`."""
        padding = self._two_steps[i].padded - sum(self.sizes[i]) if self._encoded else 0
        return tf.concat([*flat, tf.zeros([padding])] if padding else flat, 0)

    def sum(self, i: int, payload: tf.Tensor) -> tuple[tf.Tensor, Errors | None]:
        """The sum over ranks of bucket i, float32 [numbers], and its new errors, for `assign`; `payload`: `joined`."""
        if not self._encoded:
            return payload, None
        errors = Errors(*(tf.convert_to_tensor(error) for error in self._errors[i]))
        worker, server = self._signs[i]
        return self._two_steps[i].sum(payload, worker, errors, server)

    def assign(self, errors: list[Errors | None]) -> None:
        """Assign the errors that `sum` returned for each bucket."""
        for variables, arrays in zip(self._errors, errors, strict=True):
            for variable, array in zip(variables or (), arrays or (), strict=True):
                variable.assign(array)

    def bytes_reduced(self) -> float:
        """Payload of one step in bytes, see exchange.base.Exchange.bytes_reduced."""
        if not self._encoded:
            return 0.0
        return sum(two_step.worker_shape[0] * Signs.sent_bytes(two_step.part) for two_step in self._two_steps)

    def wire_bytes(self) -> float:
        """Bytes that a rank sends in one step."""
        pairs = zip(self._two_steps, self._signs, strict=True)
        return sum(two_step.sent_bytes(worker) for two_step, (worker, _) in pairs) if self._encoded else 0.0

    def _signs_of(self, i: int) -> tuple[Signs, Signs]:
        """Two encodings for bucket i: one of the rows that this rank sends, one of the sums that it makes."""
        numbers, sums = sum(self.sizes[i]), self._two_steps[i]
        blocks = self._world.size * sums.part // BLOCK
        first = BLOCK * np.arange(blocks)
        counted = np.clip(numbers - first, 0, BLOCK)
        # A block belongs to the tensor of its middle number.
        groups = np.searchsorted(np.cumsum(self.sizes[i]), first + BLOCK // 2, side="right")
        groups = np.minimum(groups, len(self.sizes[i]) - 1).astype(np.int32)
        return tuple(
            Signs(group, number, self._fused)
            for group, number in zip(sums.of_rank(groups), sums.of_rank(counted), strict=True)
        )


_SCALE_BYTES = 2
_RUNS = 8  # a block is cut into so many runs that are added elementwise, because XLA's reduction is slower than memory


class Signs:
    """One bit a number; an encodings.Encoding. The arrays describe the blocks of all rows that will be encoded.

    `groups`: group numbers from 0 [blocks]. `numbers`: how many numbers of each block count [blocks]; the others are
    padding and get no errors: scales leave padding out, so its errors would grow with every step. With `fused` XLA
    compiles the encoding; without XLA it is several times slower.
    """

    def __init__(self, groups: np.ndarray, numbers: np.ndarray, fused: bool = True) -> None:
        self._groups, self._numbers = groups, numbers
        self._compiled = compiled if fused else lambda function: function

    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See encodings.Encoding."""
        return self._encode(values)

    def encode_owing(self, values: tf.Tensor, owed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See encodings.encode_owing."""
        return self._encode(values, owed)

    def _encode(self, *terms: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sum of the terms; returns the encoded rows and the second result of `_pack`."""
        rows = terms[0].shape[0]
        if np.any(self._numbers % BLOCK):
            terms = tuple(self._unpadded(term) for term in terms)
        sums = self._compiled(_block_sums)(*terms)
        scales = tf.cast(tf.reshape(self._scales(tf.reshape(sums, [-1])), [rows, -1]), tf.bfloat16)
        packed, decoded_or_error = self._compiled(_pack)(scales, *terms)
        return tf.concat([packed, tf.reshape(tf.bitcast(scales, tf.uint8), [rows, -1])], 1), decoded_or_error

    def decode(self, sent: tf.Tensor) -> tf.Tensor:
        """See encodings.Encoding."""
        return self._compiled(_decode)(sent)

    @staticmethod
    def sent_bytes(numbers: int) -> int:
        """See encodings.Encoding."""
        return numbers // 8 + numbers // BLOCK * _SCALE_BYTES

    def _unpadded(self, values: tf.Tensor) -> tf.Tensor:
        blocks = tf.reshape(values, [-1, BLOCK])
        counts = tf.range(BLOCK) < tf.constant(self._numbers, tf.int32)[:, None]
        return tf.reshape(tf.where(counts, blocks, 0.0), values.shape)

    def _scales(self, sums: tf.Tensor) -> tf.Tensor:
        """Scales, float32 [blocks], from the blocks' sums of magnitudes, [blocks]."""
        groups, count = tf.constant(self._groups, tf.int32), int(self._groups.max()) + 1
        # A sum that is NaN differs from 0, so it counts and makes the scale NaN, which all ranks then see.
        counts = sums != 0
        counted = tf.where(counts, tf.constant(self._numbers, tf.float32), 0.0)
        numbers = tf.math.unsorted_segment_sum(counted, groups, count)
        means = tf.math.divide_no_nan(tf.math.unsorted_segment_sum(sums, groups, count), numbers)
        return tf.where(counts, tf.gather(means, groups), 0.0)


def _block_sums(*terms: tf.Tensor) -> tf.Tensor:
    """Each block's sum of |sum of the terms|: terms float32 [rows, n] to [rows, blocks]."""
    values = tf.abs(functools.reduce(tf.add, terms))
    runs = tf.reshape(values, [values.shape[0], -1, _RUNS, BLOCK // _RUNS])
    return tf.reduce_sum(functools.reduce(tf.add, tf.unstack(runs, axis=2)), 2)


def _pack(scales: tf.Tensor, values: tf.Tensor, owed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """The sign bits, uint8 [rows, n / 8], of values + owed, float32 [rows, n], with scales [rows, blocks].

    The second result, float32 [rows, n], is the decoded values or, with `owed`, the new error.
    """
    if owed is not None:
        values += owed
    rows = values.shape[0]
    eighths = tf.unstack(tf.reshape(values, [rows, 8, -1]), axis=1)
    shifted = [
        tf.bitwise.left_shift(tf.cast(run >= 0, tf.uint8), tf.constant(k, tf.uint8)) for k, run in enumerate(eighths)
    ]
    scales = tf.cast(scales, tf.float32)[:, :, None]
    blocks = tf.reshape(values, [rows, -1, BLOCK])
    stands_for = tf.where(blocks >= 0, scales, -scales)
    decoded_or_error = stands_for if owed is None else blocks - stands_for
    return functools.reduce(tf.bitwise.bitwise_or, shifted), tf.reshape(decoded_or_error, [rows, -1])


def _decode(sent: tf.Tensor) -> tf.Tensor:
    rows, blocks = sent.shape[0], sent.shape[1] // (BLOCK // 8 + _SCALE_BYTES)
    packed, scales = tf.split(sent, [blocks * (BLOCK // 8), blocks * _SCALE_BYTES], 1)
    scales = tf.cast(tf.bitcast(tf.reshape(scales, [rows, blocks, _SCALE_BYTES]), tf.bfloat16), tf.float32)
    run = BLOCK if blocks % 8 == 0 else BLOCK // 8  # numbers of an eighth of a row that share a scale
    scales = tf.reshape(tf.repeat(scales, BLOCK // run, 1), [rows, 8, -1, 1])
    bits = tf.constant([1 << k for k in range(8)], tf.uint8)[None, :, None, None]
    is_set = tf.bitwise.bitwise_and(tf.reshape(packed, [rows, 1, -1, run]), bits) > 0
    return tf.reshape(tf.where(is_set, scales, -scales), [rows, -1])
