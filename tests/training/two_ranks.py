"""What each of two ranks sees of a run: jobs for two_ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.world import World
from bert_horovod.model.parameters import initial_parameters
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, ranks_that_differ
from bert_horovod.training.step import TrainStep
from tests.toy_runs import new_state, train_rank


def compare_unequal_states(world: World, recipe: Recipe) -> dict[str, list[int]]:
    """The ranks that differ, before and after the broadcast, where each begins with parameters of its own."""
    state = new_state(initial_parameters(recipe.model, True, seed=world.rank), Progress(), rule="lamb")
    before = ranks_that_differ(world, state.hash(), "before")
    state.broadcast(world)
    return {"before": before, "after": ranks_that_differ(world, state.hash(), "after")}


def observe_run(world: World, store: Path, output_dir: Path, recipe: Recipe) -> dict[str, Any]:
    """Train, and tell what this rank assembled, what its step's graph holds, and what it had at the end."""
    report: dict[str, Any] = {"windows": []}  # of each row, in the order of assembling; held-out rows come last
    operations: list[str] = []
    states: list = []
    assemble, finish_step = Rows.assemble, TrainStep._finish_step

    def assemble_and_tell(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        report["windows"].extend(row[row >= 0].tolist() for row in self.windows(positions[positions >= 0]))
        report.setdefault("rows_per_epoch", self.count)
        report.setdefault("windows_per_epoch", self._index.windows)
        return assemble(self, positions)

    def finish_and_tell(self: TrainStep, *inputs):
        result = finish_step(self, *inputs)
        operations.extend(operation.type for operation in tf.compat.v1.get_default_graph().get_operations())
        report["buckets"] = len(self.reducer.plan.buckets)
        states.append(self._state)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "assemble", assemble_and_tell)
        patch.setattr(TrainStep, "_finish_step", finish_and_tell)
        train_rank(world, store, output_dir, recipe)
    report["collectives"] = [name for name in operations if name.startswith("Horovod")]
    return report | {"hash": states[-1].hash()}
