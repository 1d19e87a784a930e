"""PowerSGD alone on some ranks, on random gradients, to be compared with NumPy: jobs for two_ranks and for more."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import by_size
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime.clock import clock
from tests.exchange.local_jobs import Counted, exchange_recipe

RATE = 0.32
SHAPES = {
    WORD_EMBEDDINGS: (70, 24),
    "a.weight": (24, 24),
    "b.weight": (24, 24),
    "b.bias": (24,),
    "c.weight": (48, 20),
    "d.LayerNorm.weight": (13,),
    "e.weight": (6, 5),  # too small for rank 2
}
BUCKET_BYTES = 4 * 1600  # three buckets; the word embeddings have one of their own


def powersgd_recipe(
    steps: int = 50, wire: str = "float32", optimizer: dict[str, Any] | None = None, **exchange: Any
) -> Recipe:
    """A recipe of one phase of so many steps without warm-up, of which a tenth is dense."""
    optimizer = optimizer or {"name": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
    exchange = {"method": "powersgd", "rank": 2, "dense": 0.1, "chunk": 16} | exchange
    return exchange_recipe(steps, exchange=exchange, optimizer=optimizer, numerics={"wire": wire})


def initial() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def share(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's share of a step's gradient; tensors are of different size, and most rows of a table zero."""
    random = np.random.default_rng([rank, step])
    gradients = {name: (i + 1) / 32 * random.standard_normal(shape) for i, (name, shape) in enumerate(SHAPES.items())}
    gradients[WORD_EMBEDDINGS] *= random.random((70, 1)) < 0.3
    return {name: value.astype(np.float32) for name, value in gradients.items()}


class Ranked:
    """An exchange on one rank, step by step; it resumes with what `kept` gave."""

    def __init__(
        self,
        world: World,
        recipe: Recipe,
        known: dict[str, Any] | None = None,
        fused: bool = False,
        at_once: bool = False,
    ) -> None:
        self.world, self.recipe = Counted(world), recipe
        self.progress = Progress(**(known["progress"] if known else {}))
        parameters, slots = (known["parameters"], known["slots"]) if known else (initial(), None)
        self.state = TrainingState(parameters, slot_shapes(recipe, SHAPES), self.progress, slots)
        self.state.restored = dict(known["own"]) if known else {}
        cast = CastWeights(self.state.parameters, tf.float32)
        updater = Updater(self.state.parameters, self.state.slots, cast, recipe.optimizer, fused, at_once)
        self.exchange = recipe.exchange.code(recipe, self.world, self.state, updater, by_size(SHAPES, BUCKET_BYTES))
        self.exchange.begin(1, recipe.phase[0].steps)
        self._update = tf.function(self._work, autograph=False)

    def _work(self, gradients: dict[str, tf.Tensor], inputs: UpdateInputs) -> tuple[tf.Tensor, ...]:
        update = self.exchange.update(gradients, {}, inputs, clock)
        return update.scalars["gradient_norm"], update.finite, update.done_s, update.updated_s

    def step(self, gradients: dict[str, np.ndarray]) -> dict[str, Any]:
        """Do a step; the state afterwards, the norm, and the bytes of all-reduces as stated and as counted."""
        stated, before = self.exchange.bytes_reduced(), self.world.payload_bytes
        inputs = UpdateInputs(tf.constant(RATE), tf.constant(self.progress.updates + 1.0))
        norm, finite, *_ = self._update({name: tf.constant(value) for name, value in gradients.items()}, inputs)
        self.progress.count(bool(finite), self.recipe.numerics)
        self.exchange.after_step(self.progress.step, 1.0)
        counts = {"norm": float(norm), "stated_bytes": stated, "bytes": self.world.payload_bytes - before}
        return self.kept() | counts

    def kept(self) -> dict[str, Any]:
        """The state, as a checkpoint has it."""
        self.exchange.to_progress()
        return {
            "parameters": _values(self.state.parameters),
            "slots": {slot: _values(variables) for slot, variables in self.state.slots.items()},
            "own": _values(self.state.per_rank),
            "progress": dict(vars(self.progress)),
            "traces": self._update.experimental_get_tracing_count(),
        }


def main(directory: str, *recipes: str) -> None:
    """A rank of several: writes what each recipe, from powersgd_recipe's arguments as JSON, gives."""
    named = [powersgd_recipe(**json.loads(arguments)) for arguments in recipes]
    world = connect(launch(), named[-1])
    for number, recipe in enumerate(named):
        records = trained(world, recipe, recipe.phase[0].steps)
        Path(directory, f"{number}.{world.rank}").write_bytes(pickle.dumps((world.join_hosts().inside.size, records)))
    world.barrier()
    world.shutdown()


def _values(variables: dict[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}


def trained(
    world: World, recipe: Recipe, steps: int, bad: int = 0, known: dict[str, Any] | None = None, **options: bool
) -> list[dict[str, Any]]:
    """What each step gives, up to the last one, `steps`; in step `bad` rank 1's gradient has an infinite number."""
    ranked, records = Ranked(world, recipe, known, **options), []
    for step in range(ranked.progress.step + 1, steps + 1):
        mine = share(world.rank, step)
        if step == bad and world.rank == 1:
            mine["c.weight"][-1, -1] = np.inf
        records.append(ranked.step(mine))
    return records


def trained_in_parts(world: World, recipe: Recipe, steps: int, stops: tuple[int, ...]) -> list[dict[str, Any]]:
    """What the last step gives in one go, and, for each of `stops`, if it stops there and is resumed."""
    records = trained(world, recipe, steps)
    return [records[-1]] + [trained(world, recipe, steps, known=records[stop - 1])[-1] for stop in stops]


if __name__ == "__main__":
    main(*sys.argv[1:])
