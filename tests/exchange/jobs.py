"""What two ranks get from reductions of gradients: jobs for two_ranks."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.exchange.dense.reducer import GradientReducer

RANKS = 2
SHAPES = {"a": (5, 7), "b": (11,), "c": (40, 3), "d": (), "e": (13,)}  # forward order
BUCKET_BYTES = 200
BUCKETS = [["e", "d"], ["c"], ["b", "a"]]  # c is larger than a bucket
STEPS = 4  # of the float16 wire
TABLE = {"table": (60, 3), "f": (7,)}  # one that is looked up, and another parameter
SURGE, SURGE_STEPS = 2.0**10, 5  # growth of the gradients that overflows the float16 wire, and steps after it


def gradients(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's gradients, of much the same size in every step and far from the wire's first guess."""
    random = np.random.default_rng([rank, step])
    return {name: (1e-5 * random.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}


def short_gradients(rank: int) -> dict[str, np.ndarray]:
    """Gradients of at most 8 significant bits between 2^-20 and 2^-11: exact in float16 once they are scaled."""
    random = np.random.default_rng(100 + rank)
    return {name: (random.integers(-512, 513, shape) * 2.0**-20).astype(np.float32) for name, shape in SHAPES.items()}


def looked_up(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the table that a rank looks up, some twice, and their gradients."""
    random = np.random.default_rng(200 + rank)
    return random.integers(0, 60, (2, 6)).astype(np.int32), random.standard_normal((2, 6, 3)).astype(np.float32)


def dense(rank: int) -> dict[str, np.ndarray]:
    """The dense parts of a rank's gradients of TABLE."""
    random = np.random.default_rng(300 + rank)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in TABLE.items()}


class Wire:
    """A reducer with its compiled reduction."""

    def __init__(self, world: World, dtype: str, reduction: str = "ring") -> None:
        plan = dataclasses.replace(by_size(SHAPES, BUCKET_BYTES), reduction=reduction)
        self.reducer = GradientReducer(world, SHAPES, plan, dtype, fused=reduction == "two_step")
        self._reduce = tf.function(self.reducer.reduce, autograph=False)

    def step(self, mine: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(array) for name, array in mine.items()}
        return {name: array.numpy() for name, array in self._reduce(tensors, {}).gradients.items()}

    def operations(self) -> list[str]:
        """Types of the traced graph's operations, those of functions that it calls included."""
        signature = {name: tf.TensorSpec(shape) for name, shape in SHAPES.items()}
        definition = self._reduce.get_concrete_function(signature, {}).graph.as_graph_def()
        return [
            node.op
            for nodes in (definition.node, *(function.node_def for function in definition.library.function))
            for node in nodes
        ]


def reductions(world: World) -> dict[str, np.ndarray]:
    """Gradients reduced on both wires: of much the same size, exact, surging, and not finite."""
    arrays = {}

    def keep(name: str, reduced: dict[str, np.ndarray], wire: Wire) -> None:
        arrays.update({f"{name}.{key}": value for key, value in reduced.items()})
        arrays[f"{name}.maxima"] = wire.reducer.maxima.numpy()

    wide, narrow = Wire(world, "float32"), Wire(world, "float16")
    keep("float32", wide.step(gradients(world.rank, 0)), wide)
    two_step = Wire(world, "float16", "two_step")
    for step in range(STEPS):
        keep(f"two_step.{step}", two_step.step(gradients(world.rank, step)), two_step)
    surging = {name: array * np.float32(SURGE) for name, array in gradients(world.rank, 0).items()}
    keep("two_step.surge", two_step.step(surging), two_step)
    for step in range(STEPS):
        keep(f"float16.{step}", narrow.step(gradients(world.rank, step)), narrow)
    for name, wire in (("float32", wide), ("float16", narrow)):
        arrays[f"operations.{name}"] = np.array(wire.operations())
    keep("short.0", narrow.step(short_gradients(world.rank)), narrow)
    keep("short.1", narrow.step(short_gradients(world.rank)), narrow)
    surging = {name: array * np.float32(SURGE) for name, array in short_gradients(world.rank).items()}
    for step in range(SURGE_STEPS):
        keep(f"surge.{step}", narrow.step(surging), narrow)
    broken = short_gradients(world.rank)
    if world.rank == 1:
        broken["b"][3] = np.nan
    keep("broken", narrow.step(broken), narrow)
    return arrays


def tables(world: World) -> dict[str, np.ndarray]:
    """What becomes of looked-up rows, sent alone and with the rest, on both wires, twice for the scales."""
    arrays = {}
    ids, values = looked_up(world.rank)
    for rows in ("table", None):
        for wire in ("float32", "float16"):
            for held_back in (False, True):
                reducer = GradientReducer(world, TABLE, BucketPlan([["table"], ["f"]], rows), wire, held_back)

                @tf.function(autograph=False)
                def reduce(mine, values, ids, reducer=reducer):
                    return reducer.reduce(mine, {"table": tf.IndexedSlices(values, ids)})

                for _ in range(2):
                    mine = {name: tf.constant(array) for name, array in dense(world.rank).items()}
                    reduced = reduce(mine, tf.constant(values), tf.constant(ids))
                key = f"{rows}.{wire}.{held_back}"
                arrays |= {f"{key}.{name}": value.numpy() for name, value in reduced.gradients.items()}
                arrays[f"{key}.rows"] = reduced.rows.numpy()
                arrays[f"{key}.times"] = np.stack([reduced.ready_s.numpy(), reduced.done_s.numpy()])
                arrays[f"{key}.bytes"] = np.array(reducer.bytes_reduced(int(reduced.rows)))
                arrays[f"{key}.maxima"] = reducer.maxima.numpy()
    return arrays


def eight_bits(world: World) -> dict[str, np.ndarray]:
    """What the int8 wire makes of STEPS steps, the second of which is not finite on rank 1, and what is owed then.

    The errors are assigned as GradientExchange does it: after finite steps.
    """
    arrays: dict[str, np.ndarray] = {}
    own: dict[str, tf.Variable] = {}
    plan = dataclasses.replace(by_size(SHAPES, BUCKET_BYTES), reduction="two_step")
    reducer = GradientReducer(world, SHAPES, plan, "int8")
    reducer.feed_errors_back(lambda name, shape: own.setdefault(name, tf.Variable(tf.zeros(shape))))

    @tf.function(autograph=False)
    def reduce(mine: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        reduced = reducer.reduce(mine, {})
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in reduced.gradients.values()])
        for variable, value in reduced.owed:
            variable.assign(tf.where(finite, value, variable))
        return reduced.gradients

    for step in range(STEPS):
        mine = gradients(world.rank, step)
        if step == 1 and world.rank == 1:
            mine["c"][3, 1] = np.inf
        reduced = reduce({name: tf.constant(array) for name, array in mine.items()})
        arrays |= {f"{step}.{name}": array.numpy() for name, array in reduced.items()}
    arrays |= {name: variable.numpy() for name, variable in own.items()}
    return arrays | {"bytes": np.array([reducer.bytes_reduced(), reducer.wire_bytes()])}
