"""What ranks get from sums in two steps: jobs for two_ranks and for four ranks on two hosts."""

import sys

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.collectives.world import World
from bert_horovod.exchange.two_step import Encoding, Errors, Float16, Int8, TwoStep
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Numerics
from tests.toys import recipe_of

NUMBERS = (1, 300, 5000)  # no rank's part, and no block, divides most of them
ENCODINGS = {"float16": Float16(), "int8": Int8()}
STEPS = 6


def in_two_steps() -> Recipe:
    """A recipe with which the world has all groups that sums in two steps use."""
    return recipe_of(numerics=Numerics(wire="int8"))


def shares(rank: int, numbers: int, step: int) -> np.ndarray:
    """A rank's numbers, float32."""
    return np.random.default_rng([rank, numbers, step]).standard_normal(numbers).astype(np.float32)


def sums(world: World) -> dict[str, np.ndarray]:
    """Sums without errors, twice; of a number that is not finite on the last rank; and the bytes of each."""
    arrays = {}
    for numbers in NUMBERS:
        mine = shares(world.rank, numbers, 0)
        broken = mine.copy()
        if world.rank == world.size - 1:
            broken[-1] = np.nan
        for name, encoding in ENCODINGS.items():
            sum_of = function(world, numbers, encoding, f"sums.{numbers}.{name}")
            key = f"{name}.{numbers}"
            arrays[key], arrays[f"{key}.again"], arrays[f"{key}.broken"] = map(sum_of, (mine, mine, broken))
    return arrays


def function(world: World, numbers: int, encoding: Encoding, name: str):
    """The sum without errors of NumPy arrays [numbers], as a graph."""
    two_step = TwoStep(world, numbers, name)
    graph = tf.function(lambda values: two_step.sum(values, encoding)[0], autograph=False)
    return lambda values: graph(tf.constant(values)).numpy()


def owing(world: World) -> dict[str, np.ndarray]:
    """Sums of several steps with errors, and what is owed in the end."""
    arrays = {}
    for numbers in NUMBERS:
        two_step = TwoStep(world, numbers, f"owing.{numbers}")
        errors = Errors(tf.zeros(two_step.worker_shape), tf.zeros([two_step.part]))
        graph = tf.function(lambda values, errors, two_step=two_step: two_step.sum(values, Int8(), errors))
        total = np.zeros(numbers)
        for step in range(STEPS):
            summed, errors = graph(tf.constant(shares(world.rank, numbers, step)), errors)
            arrays[f"{numbers}.{step}"] = summed.numpy()
            total += summed.numpy()
        arrays |= {f"{numbers}.total": total, f"{numbers}.worker": errors.worker.numpy()}
        arrays[f"{numbers}.server"] = errors.server.numpy()
    return arrays


def main(path: str) -> None:
    """A rank of four on two hosts: writes what it got by hosts and as if each rank were one."""
    world = connect(launch(), in_two_steps())
    assert (world.join_hosts().inside.size, world.join_hosts().across.size) == (2, 2)
    by_host = sums(world) | {f"owing.{key}": value for key, value in owing(world).items()}
    world._hosts = None
    flat = {f"flat.{key}": value for key, value in sums(world).items()}
    np.savez(f"{path}/{world.rank}.npz", **by_host, **flat)
    world.barrier()
    world.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
