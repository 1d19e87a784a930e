"""The link between ranks, measured: all-reduces that are timed."""

import statistics
import time

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.link import Link, fit

SMALLEST, LARGEST = 1 << 10, 1 << 24  # bytes on the wire that are tried
LONGEST_S = 0.15  # an all-reduce that takes longer is the last
_REPETITIONS = 5


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
