"""An exchange alone on some ranks, on random gradients, to be compared with NumPy: jobs for two_ranks and for more."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.parameters import LAYERS, Shapes
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import optimizer_slot_shapes, slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime.xla import clock
from tests.exchange import moments
from tests.toys import toy_recipe

RANKS = 2
MATRIX = f"{LAYERS}0.e.weight"  # muon's; the others are not of a layer
SHAPES = {"a.weight": (9, 7), "b.bias": (11,), "c.weight": (40, 3), "d.LayerNorm.weight": (13,), MATRIX: (6, 5)}
BUCKET_BYTES = 500  # c and what follows it in one of its own
RATE = 0.01


def initial() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def share(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's share of a step's gradient; tensors are of different size, some numbers of a rank zero."""
    random = np.random.default_rng([rank, step])
    gradients = {name: (i + 1) * random.standard_normal(shape) for i, (name, shape) in enumerate(SHAPES.items())}
    gradients["a.weight"][:3] *= step > 2
    return {name: value.astype(np.float32) for name, value in gradients.items()}


class Counted:
    """A world that counts what its all-reduces are given, in bytes, but for single numbers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.payload_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def all_reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        def count(values: np.ndarray) -> np.ndarray:
            self.payload_bytes += values.nbytes * (values.size > 1 and name != "link" and self._world.size > 1)
            return values

        counted = tf.ensure_shape(tf.numpy_function(count, [tensor], tensor.dtype), tensor.shape)
        return self._world.all_reduce(counted, name)


def exchange_recipe(steps: int = 20, **sections: Any) -> Recipe:
    """A recipe of one phase of so many steps, of which nothing but the sections is used."""
    rare = {"checkpoint_steps": steps, "consistency_steps": 0, "evaluate_steps": 0}
    execution = rare | sections.pop("execution", {})
    return toy_recipe(phase={"steps": steps}, execution=execution, **sections)


class Tensors(NamedTuple):
    """What an exchange is given. `gradients`: of a rank and step, a gradient, or it with looked-up rows of moments."""

    first: Callable[[], dict[str, np.ndarray]]  # parameters
    gradients: Callable[[int, int], Any]
    rate: float  # of learning
    buckets: list[list[str]]

    @property
    def shapes(self) -> Shapes:
        """Shapes of the parameters."""
        return {name: value.shape for name, value in self.first().items()}


PLAIN = Tensors(initial, share, RATE, by_size(SHAPES, BUCKET_BYTES).buckets)
MOMENTS = Tensors(moments.parameters, moments.gradients, moments.LEARNING_RATE, moments.BUCKETS)


def trained(
    world: World,
    recipe: Recipe,
    steps: int,
    bad: int = 0,
    micro_batches: int = 1,
    known: dict[str, Any] | None = None,
    tensors: Tensors = PLAIN,
    **options: bool,
) -> dict[str, Any]:
    """Run an exchange.

    Args:
        world: the ranks.
        recipe: its exchange, optimizer and numerics are used; there is one phase.
        steps: the last one.
        bad: the step in which rank 1's gradient holds a NaN; 0: none.
        micro_batches: of a step, of which the last one has the gradients.
        known: go on from what this returned.
        tensors: what it is given.
        options: of Updater.

    Returns: by step states (what trains, slots and what a rank keeps, by name), parameters (those that train, and the
        common ones), norms and payload in bytes; what a checkpoint has at the end.
    """
    first, shapes = tensors.first(), tensors.shapes
    counted = Counted(world)
    progress = Progress(**(known["progress"] if known else {}))
    parameters, slots = (known["common"][-1], known["slots"]) if known else (first, None)
    state = TrainingState(parameters, slot_shapes(recipe, shapes), progress, slots)
    state.restored = dict(known["own"]) if known else {}
    own = state.copy_to_train(optimizer_slot_shapes(recipe, shapes)) if recipe.exchange.trains_copies else state
    cast = CastWeights(own.parameters, tf.float32)
    updater = Updater(own.parameters, own.slots, cast, recipe.optimizer, **({"fused": False} | options))
    exchange = recipe.exchange.code(recipe, counted, state, updater, BucketPlan(tensors.buckets))
    exchange.begin(1, recipe.phase[0].steps)

    @tf.function(autograph=False)
    def accumulate() -> None:
        exchange.during_backward(micro_batches)

    @tf.function(autograph=False)
    def work(mine: dict[str, tf.Tensor], lookups: tuple[tf.Tensor, ...], inputs: UpdateInputs):
        exchange.during_backward(micro_batches)
        looked_up = {moments.TABLE: tf.IndexedSlices(lookups[1], lookups[0])} if lookups else {}
        update = exchange.update(mine, looked_up, inputs, clock)
        return update.scalars["gradient_norm"], update.finite, update.done_s, update.updated_s

    lists = ("states", "parameters", "common", "norms", "bytes", "stated_bytes", "equal")
    record: dict[str, Any] = {name: [] for name in lists}
    for step in range(progress.step + 1, steps + 1):
        given = tensors.gradients(world.rank, step)
        mine, *lookups = given if isinstance(given, tuple) else (given,)
        if step == bad and world.rank == 1:
            mine["c.weight"][-1, -1] = np.nan
        inputs = UpdateInputs(tf.constant(tensors.rate), tf.constant(progress.updates + 1.0))
        bytes_before, stated = counted.payload_bytes, exchange.bytes_reduced()
        for _ in range(micro_batches - 1):
            accumulate()
        constants = {name: tf.constant(value) for name, value in mine.items()}
        norm, finite, *_ = work(constants, tuple(map(tf.constant, lookups)), inputs)
        progress.count(bool(finite), recipe.numerics)
        notice = exchange.after_step(step, 1.0)
        record["stated_bytes"].append(stated)
        record["equal"].append(exchange.ranks_equal_after(step))
        if notice:
            record.setdefault("notices", []).append((step, notice))
        record["bytes"].append(counted.payload_bytes - bytes_before)
        record["norms"].append(float(norm))
        record["parameters"].append(_values(own.parameters))
        record["common"].append(_values(state.parameters))
        common = {f"common/{name}": variable for name, variable in state.parameters.items()} if own is not state else {}
        record["states"].append(_values(own.parameters | own.variables() | state.per_rank | common))
    exchange.to_progress()
    record["slots"] = {slot: _values(variables) for slot, variables in state.slots.items()}
    record["own"] = _values(state.per_rank)
    record["progress"] = dict(vars(progress))
    record["traces"] = work.experimental_get_tracing_count()
    record["wire_bytes"] = exchange.wire_bytes()
    return record


def trained_in_parts(
    world: World, recipe: Recipe, steps: int, stops: tuple[int, ...], tensors: Tensors = PLAIN
) -> list[dict[str, Any]]:
    """What `trained` gives in one go, and if it stops at each of `stops` and is resumed."""
    parts = [trained(world, recipe, stop, tensors=tensors) for stop in stops]
    return [trained(world, recipe, steps, known=known, tensors=tensors) for known in (None, *parts)]


def main(directory: str, recipes: str) -> None:
    """A rank of several: writes what each recipe gives with these tensors, of (recipe, tensors) in a pickled file."""
    jobs = pickle.loads(Path(recipes).read_bytes())
    world = connect(launch(), jobs[-1][0])
    inside = world.join_hosts().inside.size
    for number, (recipe, tensors) in enumerate(jobs):
        record = trained(world, recipe, recipe.phase[0].steps, tensors=tensors)
        Path(directory, f"{number}.{world.rank}").write_bytes(pickle.dumps((inside, record)))
    world.barrier()
    world.shutdown()


def _values(variables: dict[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
