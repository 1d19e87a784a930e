"""The link between ranks, measured: sums over ranks that are timed."""

import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.link import Link, fit

SMALLEST, LARGEST = 1 << 14, 1 << 24  # bytes on the wire that are tried
LONGEST_S = 0.15  # a sum that takes longer is the last
_REPETITIONS = 5


def measure_link(
    world: World, collective: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType, number_bytes: float
) -> Link:
    """Time a collective of sizes four times each other, and fit a link; equal on all ranks.

    Takes about a second, and XLA's time for each size where it compiles some of it. A world of one has a link that
    costs nothing.

    Args:
        world: the ranks.
        collective: of a tensor [n]; what it returns is there when the collective has ended.
        dtype: of what it takes.
        number_bytes: of each of its n numbers on the wire.
    """
    if world.size == 1:
        return Link(0.0, 0.0)
    timed = tf.function(collective, autograph=False)
    payload, seconds = SMALLEST, []
    while payload <= LARGEST and (len(seconds) < 2 or seconds[-1][1] < LONGEST_S):
        # Not zeros, which Gloo adds in less time than other halves.
        tensor = tf.cast(tf.random.stateless_normal([int(payload / number_bytes)], [0, world.rank]), dtype)
        timed(tensor)
        times = []
        for _ in range(_REPETITIONS):
            world.barrier()
            begin = time.perf_counter()
            timed(tensor)
            times.append(time.perf_counter() - begin)
        # Rank 0's: all ranks must go on, and plan, alike.
        taken = world.broadcast(tf.constant(statistics.median(times), tf.float64), "link.seconds").numpy()
        seconds.append((payload, float(taken)))
        payload *= 4
    return fit(seconds)
