"""An exchange alone on two ranks, on gradients that are random, to be compared with NumPy: jobs for two_ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import by_size
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import optimizer_slot_shapes, slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime.clock import clock
from tests.toys import toy_recipe

RANKS = 2
SHAPES = {"a.weight": (9, 7), "b.bias": (11,), "c.weight": (40, 3), "d.LayerNorm.weight": (13,), "e.weight": (6, 5)}
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


def trained(
    world: World,
    recipe: Recipe,
    steps: int,
    bad: int = 0,
    micro_batches: int = 1,
    known: dict[str, Any] | None = None,
    first: Callable[[], dict[str, np.ndarray]] = initial,
    gradients: Callable[[int, int], dict[str, np.ndarray]] = share,
    rate: float = RATE,
) -> dict[str, Any]:
    """Run an exchange.

    Args:
        world: the ranks.
        recipe: its exchange, optimizer and numerics are used; there is one phase.
        steps: the last one.
        bad: the step in which rank 1's gradient holds a NaN; 0: none.
        micro_batches: of a step, of which the last one has the gradients.
        known: go on from what this returned.
        first: the parameters at the beginning.
        gradients: a rank's shares by rank and step.
        rate: the learning rate.

    Returns: by step parameters (those that train, and the common ones), norms and payload in bytes; state at the end.
    """
    counted = Counted(world)
    progress = Progress(**(known["progress"] if known else {}))
    parameters, slots = (known["common"][-1], known["slots"]) if known else (first(), None)
    state = TrainingState(parameters, slot_shapes(recipe, SHAPES), progress, slots)
    for name, value in (known["own"] if known else {}).items():
        state.own(name, value.shape).assign(value)
    own = state.copy_to_train(optimizer_slot_shapes(recipe, SHAPES)) if recipe.exchange.trains_copies else state
    updater = Updater(own.parameters, own.slots, CastWeights(own.parameters, tf.float32), recipe.optimizer, False)
    exchange = recipe.exchange.code(recipe, counted, state, updater, by_size(SHAPES, BUCKET_BYTES))
    exchange.begin(1, recipe.phase[0].steps)

    @tf.function(autograph=False)
    def accumulate() -> None:
        exchange.during_backward(micro_batches)

    @tf.function(autograph=False)
    def work(mine: dict[str, tf.Tensor], inputs: UpdateInputs):
        exchange.during_backward(micro_batches)
        update = exchange.update(mine, {}, inputs, clock)
        return update.scalars["gradient_norm"], update.finite, update.done_s, update.updated_s

    lists = ("parameters", "common", "norms", "bytes", "stated_bytes", "own_by_step")
    record: dict[str, Any] = {name: [] for name in lists}
    for step in range(progress.step + 1, steps + 1):
        mine = gradients(world.rank, step)
        if step == bad and world.rank == 1:
            mine["c.weight"][-1, -1] = np.nan
        inputs = UpdateInputs(tf.constant(rate), tf.constant(progress.updates + 1.0))
        bytes_before = counted.payload_bytes
        for _ in range(micro_batches - 1):
            accumulate()
        norm, finite, *_ = work({name: tf.constant(value) for name, value in mine.items()}, inputs)
        progress.count(bool(finite), recipe.numerics)
        notice = exchange.after_step(step, 1.0)
        record["stated_bytes"].append(exchange.bytes_reduced())
        if notice:
            record.setdefault("notices", []).append((step, notice))
        record["bytes"].append(counted.payload_bytes - bytes_before)
        record["norms"].append(float(norm))
        record["parameters"].append({name: variable.numpy() for name, variable in own.parameters.items()})
        record["common"].append({name: variable.numpy() for name, variable in state.parameters.items()})
        record["own_by_step"].append({name: variable.numpy() for name, variable in state.per_rank.items()})
    exchange.to_progress()
    record["slots"] = {
        slot: {name: value.numpy() for name, value in values.items()} for slot, values in state.slots.items()
    }
    record["own"] = {name: variable.numpy() for name, variable in state.per_rank.items()}
    record["progress"] = vars(progress)
    record["traces"] = work.experimental_get_tracing_count()
    record["wire_bytes"] = exchange.wire_bytes()
    return record


def trained_in_parts(world: World, recipe: Recipe, steps: int, stop: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `trained` gives in one go, and stopped and resumed."""
    whole = trained(world, recipe, steps)
    return whole, trained(world, recipe, steps, known=trained(world, recipe, stop))
