"""What two ranks get from collectives: a job for two_ranks."""

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.link_measurement import measure_link

DTYPES = ("float16", "float32", "float64", "int32", "int64")


def values(rank: int, dtype: str) -> np.ndarray:
    """What a rank puts into a collective: small whole numbers, exact in every dtype."""
    return np.random.default_rng(rank).integers(-50, 50, (4, 3)).astype(dtype)


def collectives(world: World) -> dict[str, np.ndarray]:
    """Every collective once, by name; and the link between the ranks."""
    arrays = {"world": np.array([world.rank, world.size, world.local_rank, world.local_size])}
    for dtype in DTYPES:
        mine = tf.constant(values(world.rank, dtype))
        arrays[f"all_reduce.{dtype}"] = world.all_reduce(mine, f"all_reduce.{dtype}").numpy()
        arrays[f"all_reduce.graph.{dtype}"] = tf.function(world.all_reduce)(mine, f"graph.{dtype}").numpy()
        arrays[f"broadcast.{dtype}"] = world.broadcast(mine, f"broadcast.{dtype}").numpy()
    mine = tf.constant(values(world.rank, "float32"))
    arrays["all_gather"] = world.all_gather(mine[: 3 - world.rank], "all_gather").numpy()
    arrays["all_gather.empty"] = world.all_gather(mine[:0] if world.rank == 1 else mine, "all_gather.empty").numpy()
    arrays["all_reduce_max"] = world.all_reduce_max(tf.constant(values(world.rank, "uint8")), "all_reduce_max").numpy()
    arrays["all_to_all"] = world.all_to_all(mine, "all_to_all").numpy()
    arrays["hosts"] = np.array([world.join_hosts().inside.size, world.join_hosts().across.size])
    arrays["in_flight"] = np.array(world.in_flight(), dtype=str)  # once hosts are known: groups are asked too
    arrays["link"] = np.array(measure_link(world, world.all_reduce, tf.float16, 2)[:2])
    return arrays
