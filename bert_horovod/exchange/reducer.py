"""Sums gradients over ranks by a plan of static buckets, in float32 or in scaled float16.

A bucket is a run of parameters, flattened into one all-reduce that starts as soon as its gradients exist. That is the
tensor fusion; being static, it gives the same sums in every run.

A looked-up table's gradient has a dense part (from the output weights that are tied to it), which backward makes
first, and a few rows (from the lookup), which it makes last. A plan may send the first with the other gradients and the
rows alone, after them: those that any rank looked up, which all ranks know from one small all-reduce of a bitmap.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.runtime.clock import Clock, no_clock

# The float16 wire maps the last step's maximum to 2^11: 2^5 below overflow, 2^25 above the smallest normal number.
WIRE_TARGET = 2.0**11
OVERFLOW_STEP = 16.0  # growth of the assumed maximum after an overflow
ROWS = "/rows"  # behind a table's name: its looked-up rows


class Reduced(NamedTuple):
    """The sums over ranks, and how the wire was used."""

    gradients: dict[str, tf.Tensor]  # dense
    ready_s: tf.Tensor  # float64 [all-reduces]: when a bucket's last gradient existed, in seconds since the epoch
    done_s: tf.Tensor  # float64 [all-reduces]: when its sum did
    rows: tf.Tensor  # int32 scalar: looked-up rows that were sent alone


class GradientReducer:
    """All-reduces the gradients of one optimizer step.

    `maxima` (float32 [all-reduces]) is the largest reduced magnitude of each in the last good step: the float16
    wire's scales are made of it. It is equal on all ranks, and part of a checkpoint.

    Args:
      world: the ranks.
      shapes: of the parameters.
      plan: the all-reduces.
      wire: float32 or float16.
      held_back: start no all-reduce before the last gradient exists; to measure what overlap is worth.
    """

    def __init__(
        self, world: World, shapes: dict[str, tuple[int, ...]], plan: BucketPlan, wire: str, held_back: bool = False
    ) -> None:
        self._world = world
        self._shapes = shapes
        self._wire = tf.as_dtype(wire)
        self._held_back = held_back
        self.plan = plan
        self.maxima = tf.Variable(
            tf.ones([len(plan.buckets) + (plan.rows is not None)]), trainable=False, name="wire_maxima"
        )

    def bytes_reduced(self, rows: int = 0) -> int:
        """Payload of one step's gradients on the wire, in bytes, with so many looked-up rows; 0 in a world of one."""
        if self._world.size == 1:
            return 0
        numbers = sum(math.prod(shape) for shape in self._shapes.values())
        bitmap = 0
        if self.plan.rows is not None:
            bitmap, width = self._shapes[self.plan.rows]
            numbers += rows * width
        return numbers * self._wire.size + bitmap

    def wire_bytes(self, rows: int = 0) -> float:
        """Bytes that a rank sends in ring all-reduces of one step's gradients: 2 (n - 1) / n of the payload."""
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced(rows)

    def maxima_by_name(self) -> dict[str, float]:
        """The maxima as a checkpoint keeps them, so that they outlive the plan: each name's is its all-reduce's."""
        values = [float(value) for value in self.maxima.numpy()]
        found = {name: value for bucket, value in zip(self.plan.buckets, values, strict=False) for name in bucket}
        return found | ({self.plan.rows + ROWS: values[-1]} if self.plan.rows is not None else {})

    def restore_maxima(self, maxima: dict[str, float]) -> None:
        """Take over those of a checkpoint, which may have been made by another plan."""
        members = [*self.plan.buckets, *([[self.plan.rows + ROWS]] if self.plan.rows is not None else [])]
        known = [[maxima[name] for name in names if name in maxima] for names in members]
        self.maxima.assign([max(values, default=1.0) for values in known])

    def reduce(
        self, gradients: dict[str, tf.Tensor], lookups: dict[str, tf.IndexedSlices], clock: Clock = no_clock
    ) -> Reduced:
        """Sum gradients over ranks, in float32; on float16 overflow the sums are not finite, on all ranks alike.

        `lookups` are the looked-up parts, by table, to be added to the dense ones; values [n, width], indices [n]. In
        a world of one, sums keep the dtypes that they were computed in, but for the tables' float32.
        """
        rows = self.plan.rows
        gradients = {
            name: with_rows(gradient, lookups[name]) if name in lookups and name != rows else gradient
            for name, gradient in gradients.items()
        }
        if self._world.size == 1:
            if rows is not None:
                gradients[rows] = with_rows(gradients[rows], lookups[rows])
            none = tf.zeros([0], tf.float64)
            return Reduced(gradients, none, none, tf.constant(0))
        first = [*gradients.values(), *(part.values for part in lookups.values())] if self._held_back else []
        reduced: dict[str, tf.Tensor] = {}
        sums, times = [], []
        for i, bucket in enumerate(self.plan.buckets):
            with tf.control_dependencies(first):
                flat = tf.concat([tf.cast(tf.reshape(gradients[name], [-1]), tf.float32) for name in bucket], 0)
            flat, *span = self.all_reduce(flat, i, clock)
            times.append(span)
            sums.append(flat)
            parts = tf.split(flat, [math.prod(self._shapes[name]) for name in bucket])
            reduced |= {name: tf.reshape(part, self._shapes[name]) for name, part in zip(bucket, parts, strict=True)}
        count = tf.constant(0)
        if rows is not None:
            ids, flat = self._touched_rows(lookups[rows], first)
            flat, *span = self.all_reduce(flat, len(sums), clock)
            times.append(span)
            sums.append(flat)
            width = self._shapes[rows][1]
            reduced[rows] = tf.tensor_scatter_nd_add(reduced[rows], ids, tf.reshape(flat, [-1, width]))
            count = tf.shape(ids)[0]
        self.follow(sums)
        return Reduced(reduced, *(tf.stack(kind) for kind in zip(*times, strict=True)), count)

    def all_reduce(self, flat: tf.Tensor, i: int, clock: Clock) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The sum of bucket i, float32, over the wire; when what it sends existed, and when the sum did."""
        scale = 1.0
        if self._wire == tf.float16:
            scale = wire_scale(self.maxima[i])
            flat = tf.cast(flat * scale, tf.float16)
        ready = clock([flat])
        flat = self._world.all_reduce(flat, f"gradients.{i}")
        return tf.cast(flat, tf.float32) / scale, ready, clock([flat])

    def follow(self, sums: list[tf.Tensor]) -> None:
        """Make the next step's maxima of this one's sums, one a bucket."""
        if self._wire == tf.float16:
            maxima = tf.stack([tf.reduce_max(tf.abs(flat)) for flat in sums])
            self.maxima.assign(next_maxima(self.maxima, maxima))

    def _touched_rows(self, lookup: tf.IndexedSlices, first: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Indices, int32 [rows, 1], of the rows that any rank looked up, and this rank's sums for them, flat."""
        table, width = self._shapes[self.plan.rows]
        ids = tf.cast(tf.reshape(lookup.indices, [-1, 1]), tf.int32)
        mine = tf.tensor_scatter_nd_update(tf.zeros([table], tf.int32), ids, tf.ones_like(ids[:, 0]))
        touched = tf.cast(self._world.all_reduce_max(tf.cast(mine, tf.uint8), "touched"), tf.int32)
        place = tf.cumsum(touched) - 1
        with tf.control_dependencies(first):
            values = tf.reshape(tf.cast(lookup.values, tf.float32), [-1, width])
        none = tf.zeros([tf.reduce_sum(touched), width])
        rows = tf.tensor_scatter_nd_add(none, tf.gather(place, ids), values)
        return tf.cast(tf.where(touched > 0), tf.int32), tf.reshape(rows, [-1])


def with_rows(dense: tf.Tensor, lookup: tf.IndexedSlices) -> tf.Tensor:
    """The dense part of a table's gradient and its looked-up rows together, float32 [entries, width]."""
    ids = tf.reshape(lookup.indices, [-1, 1])
    values = tf.reshape(tf.cast(lookup.values, tf.float32), [-1, dense.shape[1]])
    return tf.tensor_scatter_nd_add(tf.cast(dense, tf.float32), ids, values)


def wire_scale(maximum: tf.Tensor) -> tf.Tensor:
    """The power of two that brings a bucket with this maximum to between 2^11 and 2^12; float32, exact."""
    exponent = tf.bitwise.bitwise_and(tf.bitcast(maximum, tf.int32), 0x7F800000)
    return WIRE_TARGET / tf.bitcast(exponent, tf.float32)


def next_maxima(assumed: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    """The maxima to assume in the next step: those found; after an overflow more, after a bucket of zeros less.

    Zeros may be gradients that a maximum which is far too large has rounded away: many overflows in a row leave such
    a one.
    """
    lower = tf.minimum(
        assumed, tf.maximum(assumed / OVERFLOW_STEP, 2.0**-30)
    )  # not so low that what follows overflows often
    usable = tf.where(found > 0, tf.maximum(found, 2.0**-90), lower)  # 2^-90 keeps the scale itself finite
    return tf.where(tf.math.is_finite(found), usable, tf.minimum(assumed * OVERFLOW_STEP, 2.0**100))
