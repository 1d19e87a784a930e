"""Runs of the exchanges that send moments on a handful of tensors: jobs for two_ranks."""

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import optimizer_slot_shapes, slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime.xla import no_clock
from tests.toys import toy_recipe

RANKS = 2
TABLE = "table"
SHAPES = {TABLE: (48, 33), "a.weight": (5, 7), "b.bias": (11,), "c.weight": (23, 29), "d.bias": (1,), "e.bias": (11,)}
BUCKETS = [["e.bias", "d.bias", "c.weight"], ["b.bias", "a.weight", TABLE]]
USED_ROWS = 30  # of the table; the others have no gradient
STEPS = 28
BROKEN, SPIKE = 15, 19  # steps: rank 1's gradient is not a number; rank 0's is far out
LEARNING_RATE = 0.01


def moments_recipe(method: str, warmup: float = 0.0, **exchange) -> Recipe:
    """32 steps, 12 of them dense."""
    return toy_recipe(
        optimizer={
            "name": "lamb" if method == "onebit_lamb" else "adamw",
            "beta_2": 0.9,
            "weight_decay": 0.1,
            "max_grad_norm": 8.0,
        },
        exchange={"method": method, "dense": 0.4} | exchange,
        phase={"steps": 32, "warmup": warmup},
    )


def parameters() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def gradients(rank: int, step: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """A rank's shares: dense, and of the table looked-up rows with their gradients; tensors differ in magnitude."""
    random = np.random.default_rng([rank, step])
    dense = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        common = np.random.default_rng(i).standard_normal(shape)
        dense[name] = (0.3 * 10.0 ** -(i % 3) * (0.5 * common + random.standard_normal(shape))).astype(np.float32)
    dense[TABLE][USED_ROWS:] = 0
    if (rank, step) == (1, BROKEN):
        dense["c.weight"][3, 4] = np.nan
    if (rank, step) == (0, SPIKE):
        dense["c.weight"] *= np.float32(100)
    ids = random.integers(0, USED_ROWS, 9).astype(np.int32)
    return dense, ids, (0.1 * random.standard_normal((9, 33))).astype(np.float32)


class Toy:
    """An exchange on the toy tensors, step by step; it resumes with `progress` and `values` (of state.variables)."""

    def __init__(
        self,
        world: World,
        recipe: Recipe,
        fused: bool = False,
        progress: Progress | None = None,
        values: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.world, self.recipe = world, recipe
        self.state = TrainingState(parameters(), slot_shapes(recipe, SHAPES), progress or Progress())
        for name, value in (values or {}).items():
            self.state.variables()[name].assign(value)
        trained = self.state
        if recipe.exchange.trains_copies:
            trained = self.state.copy_to_train(optimizer_slot_shapes(recipe, SHAPES))
        cast = CastWeights(trained.parameters, tf.float32)
        updater = Updater(trained.parameters, trained.slots, cast, recipe.optimizer, fused)
        self.exchange = recipe.exchange.code(recipe, world, self.state, updater, BucketPlan(BUCKETS))
        self.exchange.begin(1, recipe.total_steps)
        self._update = tf.function(
            lambda mine, values, ids, inputs: self.exchange.update(
                mine, {TABLE: tf.IndexedSlices(values, ids)}, UpdateInputs(*inputs), no_clock
            ),
            autograph=False,
        )

    def step(self, number: int, loss: float = 1.0) -> dict[str, np.ndarray]:
        """Do a step with this rank's gradients; what the state is after it, and what the exchange said."""
        return self.step_with(*gradients(self.world.rank, number), number, loss)

    def step_with(
        self, dense: dict[str, np.ndarray], ids: np.ndarray, values: np.ndarray, number: int, loss: float = 1.0
    ) -> dict[str, np.ndarray]:
        """As step, with gradients as `gradients` gives them."""
        inputs = (tf.constant(LEARNING_RATE), tf.constant(self.state.progress.updates + 1.0))
        tensors = {name: tf.constant(value) for name, value in dense.items()}
        finite = bool(self._update(tensors, tf.constant(values), tf.constant(ids), inputs).finite)
        self.state.progress.count(finite, self.recipe.numerics)
        notice = self.exchange.after_step(number, loss)
        variables = {name: variable.numpy() for name, variable in self.state.variables().items()}
        variables |= {name: variable.numpy() for name, variable in self.state.per_rank.items()}
        return variables | {"notice": np.array(notice), "finite": np.array(finite)}
