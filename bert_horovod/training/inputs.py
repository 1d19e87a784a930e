"""The inputs of optimizer steps: a rank's micro-batches as arrays, made in the background ahead of each step."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.positions import step_positions
from bert_horovod.batches.source import Dataset, Source
from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData
from bert_horovod.model.forward import as_arrays
from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.base import Task
from bert_horovod.training.run import Run
from bert_horovod.training.step_results import StepInputs

# The dropout stream of the recipe's seed; batches/text/rows.py uses other stream numbers.
_DROPOUT_STREAM = 101


class StepBatch(NamedTuple):
    """This rank's part of a global batch."""

    number: int  # number of the global batch in the phase
    micro_batches: list[dict[str, np.ndarray]]  # float32 or int32
    first_rows: list[int]  # for each micro-batch, the place of its first row in the global batch
    counts: dict[str, int]  # the task's counts of these rows
    tokens: int  # real tokens, without padding


def step_batches(run: Run) -> Iterator[tuple[StepBatch, float]]:
    """The phase's remaining global batches, after the run's progress, with the seconds that the step waited for each.

    A background thread makes them. Raises DamagedData if the data hold an id that is not in the model's vocabulary.
    """
    phase, job = run.phase, run.job

    def make(number: int) -> StepBatch:
        rows = phase.settings.global_batch
        return make_batch(number, rows, phase.source, job.dataset, run.task, run.recipe, run.world)

    passed_over = run.state.progress.passed_over.get(str(phase.number), 0) - phase.begin
    return prefetch(make, run.state.progress.step + passed_over, phase.end + passed_over, depth=2)


def make_batch(
    number: int, rows: int, source: Source, dataset: Dataset, task: Task, recipe: Recipe, world: World
) -> StepBatch:
    """This rank's part of global batch `number`, which has `rows` rows over all ranks.

    Raises DamagedData as step_batches does.
    """
    micro_batches = step_positions(number, rows, world.rank, world.size, recipe.execution.micro_batch)
    together = source.assemble(np.concatenate([positions for positions, _ in micro_batches]))
    if (highest := together["input_ids"].max()) >= recipe.model.vocab_size:
        paths = [store.path for store in getattr(dataset, "stores", {}).values()] or [dataset.path]
        raise DamagedData(
            f"the data in {dataset.path} hold id {highest}, the model has {recipe.model.vocab_size} entries; see which "
            f"shard of a token store is damaged with: {'; '.join(f'bert-horovod verify {path}' for path in paths)}"
        )
    parts = {name: np.split(array, len(micro_batches)) for name, array in together.items()}
    arrays = [as_arrays({name: part[k] for name, part in parts.items()}) for k in range(len(micro_batches))]
    first_rows = [first_row for _, first_row in micro_batches]
    tokens = int(np.count_nonzero(together["sequence_ids"]))
    return StepBatch(number, arrays, first_rows, task.batch_counts(together), tokens)


def micro_batch_of(
    rank: int, k: int, number: int, rows: int, source: Source, recipe: Recipe, world: World
) -> tuple[dict[str, np.ndarray], int]:
    """Micro-batch k of any rank in global batch `number`, as in StepBatch: its arrays, and its first row's place."""
    positions, first_row = step_positions(number, rows, rank, world.size, recipe.execution.micro_batch)[k]
    return as_arrays(source.assemble(positions)), first_row


def step_inputs(
    recipe: Recipe, step: int, task: dict[str, list[float]], counts: dict[str, float], learning_rate: float
) -> StepInputs:
    """The inputs that all micro-batches of a step share; `step`: steps of the run before it; `task`: Progress.task."""
    return StepInputs(
        {name: np.asarray(count, np.float32) for name, count in counts.items()},
        np.asarray(learning_rate, np.float32),
        np.asarray(keyed_hash(recipe.data.seed, _DROPOUT_STREAM, index=np.array([step], np.uint64)), np.uint64),
        {name: np.asarray(numbers, np.float32) for name, numbers in task.items()},
    )


T = TypeVar("T")


def prefetch(make: Callable[[int], T], first: int, last: int, depth: int) -> Iterator[tuple[T, float]]:
    """Yield make(t) for t in [first, last), in order, made ahead by a thread that starts with the first `next`.

    The thread makes `depth` items ahead, the one being made included. With each item come the seconds that the consumer
    waited for it. What `make` raises is raised at the consumer, in place of the item. Closing the iterator (or dropping
    it) stops the thread after its current call of `make`.
    """
    maker = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(maker.submit(make, step) for step in range(first, min(first + depth, last)))
        for step in range(first + depth, last + depth):
            began = time.perf_counter()
            prepared = ahead.popleft().result()
            waited_s = time.perf_counter() - began
            if step < last:
                ahead.append(maker.submit(make, step))
            yield prepared, waited_s
    finally:
        maker.shutdown(cancel_futures=True)
