"""Sums gradients over ranks by a plan of static buckets: in float32, in scaled float16, or in int8.

A bucket is a run of parameters, flattened into one sum over ranks that starts as soon as its gradients exist. That is
the tensor fusion; being static, it gives the same sums in every run. There are two ways to sum:

    ring       an all-reduce in the wire's dtype, which rounds each of n - 1 additions
    two_step   exchange/two_step.py: added in float32 and rounded twice, however many ranks

While ranks add their parts of a bucket, the next one is on the wire.

A looked-up table's gradient has a dense part (from the output weights that are tied to it), which backward makes
first, and a few rows (from the lookup), which it makes last. A plan may send the first with the other gradients and the
rows alone, after them: those that any rank looked up, which all ranks know from one small all-reduce of a bitmap. They
go by ring, because their number differs from step to step; not in int8, because what is owed to a row has no place in
the next step's rows.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.link import NUMBER_BYTES
from bert_horovod.exchange.encodings import Encoding, Float16, Int8
from bert_horovod.exchange.two_step import Errors, TwoStep
from bert_horovod.recipe.sections import REDUCTIONS
from bert_horovod.runtime.clock import Clock, no_clock
from bert_horovod.runtime.xla import compiled

# The float16 wire maps the last step's maximum to 2^11: 2^5 below overflow, 2^25 above the smallest normal number.
WIRE_TARGET = 2.0**11
OVERFLOW_STEP = 16.0  # growth of the assumed maximum after an overflow
ROWS = "/rows"  # behind a table's name: its looked-up rows
ENCODINGS: dict[str, Encoding] = {"float16": Float16(), "int8": Int8()}  # by wire, in two steps

Owed = list[tuple[tf.Variable, tf.Tensor]]  # variables, and what they are to hold if the step is finite


class Reduced(NamedTuple):
    """The sums over ranks, and how the wire was used."""

    gradients: dict[str, tf.Tensor]  # dense
    ready_s: tf.Tensor  # float64 [sums]: when a bucket's last gradient existed, in seconds since the epoch
    done_s: tf.Tensor  # float64 [sums]: when its sum did
    rows: tf.Tensor  # int32 scalar: looked-up rows that were sent alone
    owed: Owed  # empty without error feedback


class GradientReducer:
    """Sums the gradients of one optimizer step over ranks.

    `maxima` (float32 [sums]) is the largest reduced magnitude of each in the last good step: the float16 wire's scales
    are made of it. It is equal on all ranks, and part of a checkpoint.

    Args:
      world: the ranks.
      shapes: of the parameters.
      plan: the buckets, and the way to sum them.
      wire: float32, float16 or int8.
      held_back: start no sum before the last gradient exists; to measure what overlap is worth.
      fused: whether XLA compiles casts and scaling of halves.

    Raises:
      ValueError: the wire cannot go as the plan says.
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
        self._two_steps: list[TwoStep] = []  # of each bucket; none: by ring
        if world.size > 1 and plan.reduction == "two_step":
            self._two_steps = [TwoStep(world, sum(sizes), f"gradients.{i}") for i, sizes in enumerate(self._sizes)]
        self._errors: list[Errors] | None = None  # of each bucket, variables; None: no error feedback

    def feed_errors_back(self, own: Callable[[str, tuple[int, ...]], tf.Variable]) -> None:
        """From now on add to each bucket what the wire lost of it before, which the caller assigns: Reduced.owed.

        `own` gives this rank's float32 variables by name and shape: `error.worker.{i}` and `error.server.{i}`.
        """
        self._errors = [
            Errors(own(f"error.worker.{i}", each.worker_shape), own(f"error.server.{i}", (each.part,)))
            for i, each in enumerate(self._two_steps)
        ]

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload of one step's gradients on the wire, in bytes, with so many looked-up rows; 0 in a world of one."""
        if self._world.size == 1:
            return 0
        return self._bucket_bytes() + self._rows_bytes(rows)

    def wire_bytes(self, rows: int = 0) -> float:
        """Bytes that a rank sends for one step's gradients: 2 (n - 1) / n of the payload, in a ring as in two steps.

        In two steps over hosts of several ranks: what it sends to other hosts.
        """
        share = 2 * (self._world.size - 1) / self._world.size
        if not self._two_steps:
            return share * self.bytes_reduced(rows)
        return sum(each.sent_bytes(ENCODINGS[self._wire]) for each in self._two_steps) + share * self._rows_bytes(rows)

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
        """Sum gradients over ranks, in float32; what is not finite, or overflows float16, is so on all ranks alike.

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
            return Reduced(gradients, none, none, tf.constant(0), [])
        first = [*gradients.values(), *(part.values for part in lookups.values())] if self._held_back else []
        reduced: dict[str, tf.Tensor] = {}
        maxima, times, owed = [], [], []
        for i, bucket in enumerate(self.plan.buckets):
            with tf.control_dependencies(first):
                flat = self._flat([gradients[name] for name in bucket], i)
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
                flat = _halves(self._scale(i), flat)[0]
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
        """The sum of float32 [n] as bucket i, by ring; when what it sends existed, and when the sum did.

        The caller passes all sums of a step to `follow`.
        """
        if self._wire == "float16":
            (flat,) = self._compiled(_halves)(self._scale(i), flat)
        ready = clock([flat])
        flat = self._world.all_reduce(flat, f"gradients.{i}")
        done = clock([flat])
        return (tf.cast(flat, tf.float32) / self._scale(i) if self._wire == "float16" else flat), ready, done

    def follow(self, sums: list[tf.Tensor]) -> None:
        """Make the next step's maxima of this one's sums, one a bucket."""
        if self._wire == "float16":
            maxima = tf.stack([tf.reduce_max(tf.abs(flat)) for flat in sums])
            self.maxima.assign(next_maxima(self.maxima, maxima))

    def _flat(self, gradients: list[tf.Tensor], i: int) -> tf.Tensor:
        """A bucket's gradients one behind another: float32 or scaled halves; in two steps with zeros behind."""
        parts = [tf.reshape(gradient, [-1]) for gradient in gradients]  # XLA's loops over two axes take 4 times longer
        if self._wire == "float16":
            parts = self._compiled(_halves)(self._scale(i), *parts)
        else:
            parts = [tf.cast(part, tf.float32) for part in parts]
        if self._two_steps:
            parts.append(tf.zeros([self._two_steps[i].padded - sum(self._sizes[i])], parts[0].dtype))
        return tf.concat(parts, 0)  # not by XLA, whose concatenation takes longer than casts and scaling

    def _sum(self, flat: tf.Tensor, i: int, owed: Owed) -> tf.Tensor:
        """The sum of a bucket over ranks, in the dtype of `flat`; adds to `owed`."""
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
        """The sums of a bucket by parameter, float32, each flat; of the float16 wire also their largest magnitude."""
        if self._wire == "float16":
            return self._compiled(_numbers_of_halves)(flat, self._scale(i), tuple(self._sizes[i]))
        return tf.split(flat, self._sizes[i]), None

    def _scale(self, i: int) -> tf.Tensor:
        return wire_scale(self.maxima[i])

    def _bucket_bytes(self) -> float:
        if self._two_steps:
            return sum(ENCODINGS[self._wire].sent_bytes(each.padded) for each in self._two_steps)
        return NUMBER_BYTES[self._wire] * sum(map(sum, self._sizes))

    def _rows_bytes(self, rows: int) -> float:
        """Of looked-up rows that are sent alone, and of the bitmap before them."""
        if self.plan.rows is None:
            return 0
        table, width = self._shapes[self.plan.rows]
        return NUMBER_BYTES[self._wire] * rows * width + table

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


def _halves(scale: tf.Tensor, *numbers: tf.Tensor) -> list[tf.Tensor]:
    """Each times the scale, as halves."""
    return [tf.cast(tf.cast(each, tf.float32) * scale, tf.float16) for each in numbers]


def _numbers_of_halves(
    halves: tf.Tensor, scale: tf.Tensor, sizes: tuple[int, ...] | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Halves [n] without the scale: float32 in parts of these sizes (None: in one), and their largest magnitude.

    Magnitudes of halves are ordered as their bits are, NaN last: XLA vectorises the maximum of integers alone, and
    its maximum of floats may lose a NaN.
    """
    largest = tf.reduce_max(tf.bitwise.bitwise_and(tf.bitcast(halves, tf.int16), 0x7FFF))
    parts, at = [], 0
    for size in [tf.size(halves)] if sizes is None else sizes:
        parts.append(tf.cast(halves[at : at + size], tf.float32) / scale)
        at += size
    return parts, tf.cast(tf.bitcast(largest, tf.float16), tf.float32) / scale
