"""Sums gradients over ranks by a plan of static buckets: in float32, in scaled float16, or in int8.

A bucket is several parameters, one after another, flattened to one tensor. Its sum over ranks starts as soon as its
gradients exist. This is tensor fusion; because buckets are static, sums are the same in every run. There are two ways
to sum:

    ring       an all-reduce in the wire's dtype, which rounds each of n - 1 additions
    two_step   exchange/two_step.py: adds in float32 and rounds twice, for any number of ranks

While ranks add their parts of a bucket, the next one is on the wire.

An embedding table's gradient has two parts: a dense one from the tied output matrix, which backward computes first, and
the sparse embedding gradient from the lookup, a few rows, which backward computes last. A plan may send the dense part
with the other gradients, and after them the looked-up rows alone: every row that any rank looked up. Ranks know these
rows from one small all-reduce of a bitmap. Rows go by ring, because their number differs from step to step. They never
go in int8, because the rounding error of a row would have to wait until a step sends this row again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.exchange.base import Gradients, Lookups
from bert_horovod.exchange.two_step import Encoding, Errors, Float16, Int8, TwoStep
from bert_horovod.model.lookups import add_rows
from bert_horovod.recipe.sections import REDUCTIONS
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock, compiled, no_clock

# The float16 wire scales the last step's maximum to 2^11: 2^5 below overflow, 2^25 above the smallest normal number.
WIRE_TARGET = 2.0**11
OVERFLOW_STEP = 16.0  # growth of the assumed maximum after an overflow
ROWS = "/rows"  # suffix of a table's name, for its looked-up rows
ENCODINGS: dict[str, Encoding] = {"float16": Float16(), "int8": Int8()}  # of two_step, by wire

Owed = list[tuple["tf.Variable", "tf.Tensor"]]  # error variables, and the values to assign if the step is finite


class Reduced(NamedTuple):
    """The sums over ranks, the times of each sum, and the errors to keep."""

    gradients: Gradients  # dense
    ready_s: tf.Tensor  # float64 [sums]: time at which a bucket's last gradient existed, in seconds since the epoch
    done_s: tf.Tensor  # float64 [sums]: time at which its sum existed
    rows: tf.Tensor  # int32 scalar: looked-up rows that were sent apart from the buckets
    owed: Owed  # empty without error feedback


class GradientReducer:
    """Sums the gradients of one optimizer step over ranks, on a wire: float32, float16 or int8.

    `maxima` (float32 [sums]) holds the largest magnitude of each sum in the last good step; the float16 wire computes
    its scales from it. It is equal on all ranks, and part of a checkpoint. `held_back`: see GradientExchange. With
    `fused` XLA compiles casts and scaling of float16 numbers. Raises ValueError if the wire does not allow the plan's
    way to sum, or rows sent alone.
    """

    def __init__(
        self,
        world: World,
        shapes: dict[str, tuple[int, ...]],
        plan: BucketPlan,
        wire: str,
        held_back: bool = False,
        fused: bool = False,
    ) -> None:
        if plan.reduction not in REDUCTIONS[wire] or (wire == "int8" and plan.rows is not None):
            raise ValueError(f"a plan by {plan.reduction}, rows of {plan.rows} alone, does not fit the {wire} wire")
        self._world = world
        self._shapes = shapes
        self._wire = wire
        self._held_back = held_back
        self._compiled = compiled if fused else lambda function: function
        self.plan = plan
        self.maxima = tf.Variable(
            tf.ones([len(plan.buckets) + (plan.rows is not None)]), trainable=False, name="wire_maxima"
        )
        self._sizes = [[math.prod(shapes[name]) for name in bucket] for bucket in plan.buckets]
        self._two_steps: list[TwoStep] = []  # one a bucket; empty: sums by ring
        if world.size > 1 and plan.reduction == "two_step":
            self._two_steps = [TwoStep(world, sum(sizes), f"gradients.{i}") for i, sizes in enumerate(self._sizes)]
        self._errors: list[Errors] | None = None  # one a bucket, of variables; None: no error feedback

    def feed_errors_back(self, own: Callable[[str, tuple[int, ...]], tf.Variable]) -> None:
        """Turn on error feedback: each bucket is summed with the rounding error of its last sum added.

        The caller assigns the new errors, Reduced.owed. `own` returns this rank's float32 variable of a name and shape:
        `error.worker.{i}` and `error.server.{i}`.
        """
        self._errors = [
            Errors(own(f"error.worker.{i}", two_step.worker_shape), own(f"error.server.{i}", (two_step.part,)))
            for i, two_step in enumerate(self._two_steps)
        ]

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload of one step's gradients, in bytes, with `rows` rows sent alone; 0 in a world of one."""
        if self._world.size == 1:
            return 0
        return self._bucket_bytes() + self._rows_bytes(rows)

    def wire_bytes(self, rows: int = 0) -> float:
        """Bytes that a rank sends for one step's gradients: 2 (n - 1) / n of the payload, by ring and by two_step.

        With two_step over hosts of several ranks, only the bytes that a rank sends to other hosts.
        """
        share = 2 * (self._world.size - 1) / self._world.size
        if not self._two_steps:
            return share * self.bytes_reduced(rows)
        return sum(
            two_step.sent_bytes(ENCODINGS[self._wire]) for two_step in self._two_steps
        ) + share * self._rows_bytes(rows)

    def maxima_by_name(self) -> dict[str, float]:
        """The maxima for a checkpoint, by parameter, so that another plan can read them: each has its bucket's."""
        bucket_maxima = [float(maximum) for maximum in self.maxima.numpy()]
        maxima = {
            name: maximum for bucket, maximum in zip(self.plan.buckets, bucket_maxima, strict=False) for name in bucket
        }
        return maxima | ({self.plan.rows + ROWS: bucket_maxima[-1]} if self.plan.rows is not None else {})

    def restore_maxima(self, maxima: dict[str, float]) -> None:
        """Restore the maxima from a checkpoint, which another plan may have written."""
        members = [*self.plan.buckets, *([[self.plan.rows + ROWS]] if self.plan.rows is not None else [])]
        maxima_of_members = [[maxima[name] for name in names if name in maxima] for names in members]
        self.maxima.assign([max(member_maxima, default=1.0) for member_maxima in maxima_of_members])

    def reduce(
        self, gradients: Gradients, lookups: Lookups, clock: Clock = no_clock, loss_scale: tf.Tensor | float = 1.0
    ) -> Reduced:
        """Sum gradients over ranks; results are float32.

        If a number is not finite or overflows float16 on one rank, the sum is not finite on all ranks. `lookups` are
        the sparse embedding gradients by table, not yet added to the dense parts; values [n, width], indices [n]. In a
        world of one, gradients keep the dtypes that they were computed in, except for the tables, which are float32.
        On the float16 wire, gradients in float16 are divided by `loss_scale`, float32 scalar.
        """
        rows = self.plan.rows
        gradients = whole(gradients, lookups, without=rows)
        if self._world.size == 1:
            if rows is not None:
                gradients[rows] = with_rows(gradients[rows], lookups[rows])
            none = tf.zeros([0], tf.float64)
            return Reduced(gradients, none, none, tf.constant(0), [])
        first = [*gradients.values(), *(part.values for part in lookups.values())] if self._held_back else []
        reduced: dict[str, tf.Tensor] = {}
        maxima, times, owed = [], [], []
        for i, bucket in enumerate(self.plan.buckets):
            with tf.control_dependencies(first):
                flat = self._flat([gradients[name] for name in bucket], i, loss_scale)
            ready = clock([flat])
            flat = self._sum(flat, i, owed)
            times.append((ready, clock([flat])))
            sums, largest = self._apart(flat, i)
            reduced |= {name: tf.reshape(part, self._shapes[name]) for name, part in zip(bucket, sums, strict=True)}
            maxima.append(largest)
        count = tf.constant(0)
        if rows is not None:
            ids, flat = self._touched_rows(lookups[rows], first)
            i = len(maxima)
            if self._wire == "float16":
                flat = _halves(self._scale(i), 1.0, flat)[0]
            ready = clock([flat])
            flat = self._world.all_reduce(flat, f"gradients.{i}")
            times.append((ready, clock([flat])))
            if self._wire == "float16":
                (flat,), largest = _numbers_of_halves(flat, self._scale(i), None)
                maxima.append(largest)
            width = self._shapes[rows][1]
            reduced[rows] = tf.tensor_scatter_nd_add(reduced[rows], ids, tf.reshape(flat, [-1, width]))
            count = tf.shape(ids)[0]
        if self._wire == "float16":
            self.maxima.assign(next_maxima(self.maxima, tf.stack(maxima)))
        return Reduced(reduced, *(tf.stack(kind) for kind in zip(*times, strict=True)), count, owed)

    def all_reduce(self, flat: tf.Tensor, i: int, clock: Clock) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sum float32 [n] over ranks as bucket i, by ring: the sum, the time its input existed, the time it existed.

        The caller must pass all sums of a step to `follow`.
        """
        if self._wire == "float16":
            (flat,) = self._compiled(_halves)(self._scale(i), 1.0, flat)
        ready = clock([flat])
        flat = self._world.all_reduce(flat, f"gradients.{i}")
        done = clock([flat])
        return (tf.cast(flat, tf.float32) / self._scale(i) if self._wire == "float16" else flat), ready, done

    def follow(self, sums: list[tf.Tensor]) -> None:
        """Compute the next step's maxima from this step's sums, one a bucket."""
        if self._wire == "float16":
            maxima = tf.stack([tf.reduce_max(tf.abs(flat)) for flat in sums])
            self.maxima.assign(next_maxima(self.maxima, maxima))

    def _flat(self, gradients: list[tf.Tensor], i: int, loss_scale: tf.Tensor | float) -> tf.Tensor:
        """Concatenate a bucket's gradients: float32, or scaled float16; for two_step padded with zeros."""
        parts = [tf.reshape(gradient, [-1]) for gradient in gradients]  # XLA's loops over two axes take 4 times longer
        if self._wire == "float16":
            parts = self._compiled(_halves)(self._scale(i), loss_scale, *parts)
        else:
            parts = [tf.cast(part, tf.float32) for part in parts]
        if self._two_steps:
            parts.append(tf.zeros([self._two_steps[i].padded - sum(self._sizes[i])], parts[0].dtype))
        return tf.concat(parts, 0)  # not by XLA, whose concatenation takes longer than casts and scaling

    def _sum(self, flat: tf.Tensor, i: int, owed: Owed) -> tf.Tensor:
        """The sum of a bucket over ranks, in the dtype of `flat`; appends the bucket's new errors to `owed`."""
        if not self._two_steps:
            return self._world.all_reduce(flat, f"gradients.{i}")
        if self._wire == "float16":
            return tf.reshape(self._two_steps[i].sum_encoded(flat, ENCODINGS[self._wire])[0], [-1])
        errors = None if self._errors is None else self._errors[i]
        flat, owed_then = self._two_steps[i].sum(flat, ENCODINGS[self._wire], errors)
        if errors is not None:
            owed.extend(zip(errors, owed_then, strict=True))
        return flat

    def _apart(self, flat: tf.Tensor, i: int) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Split a bucket's sum by parameter: flat float32 tensors, and on the float16 wire their largest magnitude."""
        if self._wire == "float16":
            return self._compiled(_numbers_of_halves)(flat, self._scale(i), tuple(self._sizes[i]))
        return tf.split(flat, self._sizes[i]), None

    def _scale(self, i: int) -> tf.Tensor:
        return wire_scale(self.maxima[i])

    def _bucket_bytes(self) -> float:
        if self._two_steps:
            return sum(ENCODINGS[self._wire].sent_bytes(two_step.padded) for two_step in self._two_steps)
        return NUMBER_BYTES[self._wire] * sum(map(sum, self._sizes))

    def _rows_bytes(self, rows: int) -> float:
        """Payload of looked-up rows that are sent alone, and of the bitmap before them."""
        if self.plan.rows is None:
            return 0
        table, width = self._shapes[self.plan.rows]
        return NUMBER_BYTES[self._wire] * rows * width + table

    def _touched_rows(self, lookup: tf.IndexedSlices, first: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Indices, int32 [rows, 1], of the rows that any rank looked up, and this rank's gradients of them, flat."""
        table, width = self._shapes[self.plan.rows]
        ids = tf.cast(tf.reshape(lookup.indices, [-1, 1]), tf.int32)
        looked_up = tf.tensor_scatter_nd_update(tf.zeros([table], tf.int32), ids, tf.ones_like(ids[:, 0]))
        touched = tf.cast(self._world.all_reduce_max(tf.cast(looked_up, tf.uint8), "touched"), tf.int32)
        place = tf.cumsum(touched) - 1
        with tf.control_dependencies(first):
            row_gradients = tf.reshape(tf.cast(lookup.values, tf.float32), [-1, width])
        none = tf.zeros([tf.reduce_sum(touched), width])
        rows = add_rows(none, tf.gather(place, ids[:, 0]), row_gradients)
        return tf.cast(tf.where(touched > 0), tf.int32), tf.reshape(rows, [-1])


def whole(gradients: Gradients, lookups: Lookups, without: str | None = None) -> Gradients:
    """Add each sparse embedding gradient to the dense part of its table, which becomes float32; the others stay.

    `without`: a table whose parts stay apart.
    """
    return {
        name: with_rows(gradient, lookups[name]) if name in lookups and name != without else gradient
        for name, gradient in gradients.items()
    }


def with_rows(dense: tf.Tensor, lookup: tf.IndexedSlices) -> tf.Tensor:
    """Add the sparse embedding gradient to the dense part of a table's gradient: float32 [entries, width]."""
    return add_rows(tf.cast(dense, tf.float32), lookup.indices, tf.cast(lookup.values, tf.float32))


def wire_scale(maximum: tf.Tensor) -> tf.Tensor:
    """The power of two that scales this maximum to between 2^11 and 2^12; float32, exact."""
    exponent = tf.bitwise.bitwise_and(tf.bitcast(maximum, tf.int32), 0x7F800000)
    return WIRE_TARGET / tf.bitcast(exponent, tf.float32)


def next_maxima(assumed: tf.Tensor, measured: tf.Tensor) -> tf.Tensor:
    """The maxima to assume in the next step: the found ones; larger after an overflow, smaller after only zeros.

    Only zeros may mean that the assumed maximum is far too large, so that float16 rounded all gradients to 0; many
    overflows in a row leave such a maximum.
    """
    lower = tf.minimum(
        assumed, tf.maximum(assumed / OVERFLOW_STEP, 2.0**-30)
    )  # not lower, because the next sums would often overflow
    usable = tf.where(measured > 0, tf.maximum(measured, 2.0**-90), lower)  # 2^-90 keeps the scale itself finite
    return tf.where(tf.math.is_finite(measured), usable, tf.minimum(assumed * OVERFLOW_STEP, 2.0**100))


def _halves(scale: tf.Tensor, loss_scale: tf.Tensor | float, *numbers: tf.Tensor) -> list[tf.Tensor]:
    """Divide what is in float16 by the loss scale, multiply each tensor by the scale and cast it to float16."""
    halves = []
    for bucket in numbers:
        exact = tf.cast(bucket, tf.float32)
        exact = exact / loss_scale if bucket.dtype == tf.float16 else exact
        halves.append(tf.cast(exact * scale, tf.float16))
    return halves


def _numbers_of_halves(
    halves: tf.Tensor, scale: tf.Tensor, sizes: tuple[int, ...] | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Divide float16 [n] by the scale: float32 in parts of these sizes (None: in one), and their largest magnitude.

    The maximum is taken of the bits as integers, which have the same order as the magnitudes, with NaN last. XLA
    vectorises only the maximum of integers, and its maximum of floats may lose a NaN.
    """
    largest = tf.reduce_max(tf.bitwise.bitwise_and(tf.bitcast(halves, tf.int16), 0x7FFF))
    parts, begin = [], 0
    for size in [tf.size(halves)] if sizes is None else sizes:
        parts.append(tf.cast(halves[begin : begin + size], tf.float32) / scale)
        begin += size
    return parts, tf.cast(tf.bitcast(largest, tf.float16), tf.float32) / scale
