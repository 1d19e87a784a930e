"""Measure the link between ranks: time a collective at several sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import NUMBER_BYTES, Link, fit
from bert_horovod.exchange.dense.reducer import ENCODINGS
from bert_horovod.exchange.two_step import TwoStep
from bert_horovod.runtime import lazy_tensorflow as tf

SMALLEST, LARGEST = 1 << 14, 1 << 24  # range of the bytes on the wire
LONGEST_S = 0.15  # no larger size is tried after a collective that takes longer
_REPETITIONS = 5
_AT_ONCE = 4  # collectives that are also timed together; also the step from one size to the next


def measure_link(
    world: World,
    collective: Callable[[tf.Tensor, str], tf.Tensor],
    dtype: tf.DType,
    number_bytes: float,
    largest: int = LARGEST,
) -> Link:
    """Time a collective at sizes of which each is four times the one before, and fit a Link; equal on all ranks.

    The link is then scaled to the time of several collectives that begin together, as a step's buckets do: what one of
    them computes may go on beside what another sends. Takes about a second, and the time of XLA's compilation for each
    size if the collective uses XLA. In a world of one rank the link costs nothing.

    `collective` takes a tensor [n] of `dtype` and a name; its result is ready when the collective has ended.
    `number_bytes` are on the wire for each number, `largest` bytes at the most; two sizes are tried in any case.
    """
    if world.size == 1:
        return Link(0.0, 0.0)
    together = tf.function(
        lambda tensors: [collective(tensor, f"link.{k}") for k, tensor in enumerate(tensors)], autograph=False
    )

    def median_s(payload: int, count: int) -> float:
        # Not zeros, because Gloo adds zeros faster than other float16 numbers.
        tensor = tf.cast(tf.random.stateless_normal([int(payload / number_bytes)], [0, world.rank]), dtype)
        together([tensor] * count)
        times = []
        for _ in range(_REPETITIONS):
            world.barrier()
            begin = time.perf_counter()
            together([tensor] * count)
            times.append(time.perf_counter() - begin)
        # All ranks take rank 0's time, because they must try the same sizes and make the same plan.
        return float(world.broadcast(tf.constant(statistics.median(times), tf.float64), "link.seconds").numpy())

    payload, seconds = SMALLEST, []
    while len(seconds) < 2 or (payload <= min(largest, LARGEST) and seconds[-1][1] < LONGEST_S):
        seconds.append((payload, median_s(payload, 1)))
        payload *= _AT_ONCE
    link, (size, _) = fit(seconds), seconds[-2]  # so that all together send as much as the largest did
    times = median_s(size, _AT_ONCE) / (_AT_ONCE * link.seconds(size))
    return Link(times * link.latency_s, times * link.s_per_byte)


def measure_reduction(world: World, wire: str, reduction: str, largest: int = LARGEST) -> Link:
    """Measure the link with sums by `reduction` on this wire; equal on all ranks. `largest`: see measure_link."""

    def two_step(numbers: tf.Tensor, name: str) -> tf.Tensor:
        return TwoStep(world, numbers.shape[0], name).sum_encoded(numbers, ENCODINGS[wire])[0]

    collective = two_step if reduction == "two_step" else world.all_reduce
    dtype = tf.float32 if wire == "int8" else tf.as_dtype(wire)
    return measure_link(world, collective, dtype, NUMBER_BYTES[wire], largest)
