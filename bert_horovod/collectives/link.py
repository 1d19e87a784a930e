"""The link between ranks as two numbers, fitted to all-reduces that were timed."""

import statistics
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World

SMALLEST, LARGEST = 1 << 10, 1 << 24  # bytes on the wire that are tried
LONGEST_S = 0.15  # an all-reduce that takes longer is the last
_REPETITIONS = 5


class Link(NamedTuple):
    """An all-reduce of b bytes takes latency_s + b * s_per_byte."""

    latency_s: float
    s_per_byte: float  # of payload

    def seconds(self, payload_bytes: float) -> float:
        """Of one all-reduce."""
        return self.latency_s + payload_bytes * self.s_per_byte

    def slower(self, times: float) -> "Link":
        """One that carries so many times fewer bytes a second."""
        return Link(self.latency_s, self.s_per_byte * times)

    def bytes_per_s(self, world_size: int) -> float:
        """What a rank sends a second in a ring: 2 (n - 1) / n of the payload."""
        return 2 * (world_size - 1) / world_size / self.s_per_byte


def measure_link(world: World, wire: str) -> Link:
    """Time all-reduces in the wire's dtype, of sizes four times each other, and fit a link; equal on all ranks.

    Takes about a second. A world of one has a link that costs nothing.
    """
    if world.size == 1:
        return Link(0.0, 0.0)
    dtype = tf.as_dtype(wire)
    reduce = tf.function(
        lambda tensor: world.all_reduce(tensor, "link"),
        autograph=False,
        input_signature=[tf.TensorSpec([None], dtype)],
    )
    payload, seconds = SMALLEST, []
    while payload <= LARGEST and (len(seconds) < 2 or seconds[-1][1] < LONGEST_S):
        tensor = tf.zeros([payload // dtype.size], dtype)
        reduce(tensor)
        times = []
        for _ in range(_REPETITIONS):
            world.barrier()
            begin = time.perf_counter()
            reduce(tensor)
            times.append(time.perf_counter() - begin)
        # Rank 0's: all ranks must go on, and plan, alike.
        taken = world.broadcast(tf.constant(statistics.median(times), tf.float64), "link.seconds").numpy()
        seconds.append((payload, float(taken)))
        payload *= 4
    return fit(seconds)


def fit(seconds: list[tuple[int, float]]) -> Link:
    """The link of (bytes, seconds) of all-reduces, from small to large: slope from the large, latency from the small.

    A switch or a shaped link lets a burst through at a higher rate, so that the rate of what is sent for long is that
    between the two largest.
    """
    payload, taken = (np.array(values, np.float64) for values in zip(*seconds, strict=True))
    slope = max((taken[-1] - taken[-2]) / (payload[-1] - payload[-2]), 1e-15)
    latency = float(np.median((taken - slope * payload)[: max(1, len(taken) // 2)]))
    return Link(latency if latency > 0 else float(taken.min()), float(slope))
