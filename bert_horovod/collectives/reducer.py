"""Sums gradients over ranks in static buckets, in float32 or in scaled float16.

A bucket is a run of parameters in backward order, flattened into one all-reduce that starts as soon as its gradients
exist. That is the tensor fusion; being static, it gives the same sums in every run.
"""

import math

import tensorflow as tf

from bert_horovod.collectives.world import World

# The float16 wire maps the last step's maximum to 2^11: 2^5 below overflow, 2^25 above the smallest normal number.
WIRE_TARGET = 2.0**11
OVERFLOW_STEP = 16.0  # growth of the assumed maximum after an overflow


def assign_buckets(shapes: dict[str, tuple[int, ...]], bucket_bytes: int) -> list[list[str]]:
    """Split parameters, given in forward order, into buckets in backward order.

    A bucket holds at most `bucket_bytes` of float32; a larger tensor has a bucket of its own.
    """
    buckets: list[list[str]] = [[]]
    size = 0
    for name in reversed(shapes):
        tensor_bytes = 4 * math.prod(shapes[name])
        if buckets[-1] and size + tensor_bytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += tensor_bytes
    return buckets


class GradientReducer:
    """All-reduces the gradients of one optimizer step.

    `maxima` (float32 [buckets]) is the largest reduced magnitude of each bucket in the last good step: the float16
    wire's scales are made of it. It is equal on all ranks, and part of a checkpoint.
    """

    def __init__(self, world: World, shapes: dict[str, tuple[int, ...]], bucket_bytes: int, wire: str) -> None:
        self._world = world
        self._shapes = shapes
        self._wire = tf.as_dtype(wire)
        self.buckets = assign_buckets(shapes, bucket_bytes)
        self.maxima = tf.Variable(tf.ones([len(self.buckets)]), trainable=False, name="wire_maxima")

    @property
    def bytes_reduced(self) -> int:
        """Payload of one step's gradients on the wire, in bytes; 0 in a world of one."""
        parameters = sum(math.prod(shape) for shape in self._shapes.values())
        return parameters * self._wire.size if self._world.size > 1 else 0

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends in a ring all-reduce of one step's gradients: 2 (n - 1) / n of the payload."""
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced

    def reduce(self, gradients: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Sum gradients over ranks, in float32; on float16 overflow the sums are not finite, on all ranks alike.

        In a world of one they stay as they are, in the dtypes that they were computed in.
        """
        if self._world.size == 1:
            return gradients
        reduced: dict[str, tf.Tensor] = {}
        maxima = []
        for i, bucket in enumerate(self.buckets):
            flat = tf.concat([tf.cast(tf.reshape(gradients[name], [-1]), tf.float32) for name in bucket], 0)
            flat = self._reduce_bucket(flat, i)
            if self._wire == tf.float16:
                maxima.append(tf.reduce_max(tf.abs(flat)))
            parts = tf.split(flat, [math.prod(self._shapes[name]) for name in bucket])
            reduced |= {name: tf.reshape(part, self._shapes[name]) for name, part in zip(bucket, parts, strict=True)}
        if maxima:
            self.maxima.assign(next_maxima(self.maxima, tf.stack(maxima)))
        return reduced

    def _reduce_bucket(self, flat: tf.Tensor, i: int) -> tf.Tensor:
        name = f"gradients.{i}"
        if self._wire == tf.float32:
            return self._world.all_reduce(flat, name)
        scale = wire_scale(self.maxima[i])
        return tf.cast(self._world.all_reduce(tf.cast(flat * scale, tf.float16), name), tf.float32) / scale


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
