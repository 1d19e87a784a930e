"""Run under horovodrun by test_two_ranks.py: trains, and writes what each rank saw to a file of its own."""

import json
import sys
from pathlib import Path

import numpy as np

from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.world import connect
from bert_horovod.corpus.store import open_store
from bert_horovod.model.parameters import initial_values, pretraining_shapes
from bert_horovod.recipe.reading import load_recipe
from bert_horovod.runs.state import Progress, TrainingState, ranks_that_differ
from bert_horovod.runtime.devices import use_devices
from bert_horovod.training import loop
from bert_horovod.training.hooks.watchdog import Watchdog
from bert_horovod.training.step import TrainStep

recipe_file, data_dir, output_dir, report_dir = sys.argv[1:]
recipe, store = load_recipe(recipe_file), open_store(data_dir)
world = connect(launch())
use_devices(world.local_rank, world.local_size, 0)
report: dict = {"rank": world.rank}

# Ranks that begin with different parameters are told apart, and equal after the broadcast.
state = TrainingState(
    initial_values(pretraining_shapes(recipe.model, True), recipe.model.initializer_range, seed=world.rank),
    "lamb",
    Progress(),
)
report["differ_before"] = ranks_that_differ(world, state.hash(), "before")
state.broadcast(world)
report["differ_after"] = ranks_that_differ(world, state.hash(), "after")

windows: list[list[int]] = []  # of each row
assemble = Rows.assemble


def recording(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
    if not report.get("evaluating"):
        windows.extend(row[row >= 0].tolist() for row in self.windows(positions[positions >= 0]))
        report["rows_per_epoch"] = self.count
        report["windows_per_epoch"] = self._index.windows
    return assemble(self, positions)


operations: dict[str, int] = {}
finish_step = TrainStep._finish_step


def inspected(self: TrainStep, *inputs):
    import tensorflow as tf

    result = finish_step(self, *inputs)
    for operation in tf.compat.v1.get_default_graph().get_operations():
        operations[operation.type] = operations.get(operation.type, 0) + 1
    report["buckets"] = len(self.reducer.plan.buckets)
    return result


Rows.assemble = recording
TrainStep._finish_step = inspected
watchdog = Watchdog(world, recipe.execution.stall_s)
run = loop._Run(loop.Job(recipe, store, Path(output_dir)), world, watchdog)
run._evaluate = lambda evaluator: None
run.run()
report |= {
    "windows": windows,
    "hash": run.state.hash().hex(),
    "collectives": {name: count for name, count in operations.items() if name.startswith("Horovod")},
}
Path(report_dir, f"rank-{world.rank}.json").write_text(json.dumps(report))
world.shutdown()
