"""What optimizer steps read: a rank's micro-batches as tensors, made ahead of the step in the background."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.positions import step_positions
from bert_horovod.batches.prefetch import prefetch
from bert_horovod.batches.source import Dataset, Source
from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.base import Task
from bert_horovod.training.run import Run
from bert_horovod.training.step import StepInputs, as_tensors

# A stream of the recipe's seed, apart from those of batches/rows.py.
_DROPOUT_STREAM = 101


class StepBatch(NamedTuple):
    """This rank's part of a global batch."""

    number: int  # of the global batch, in the phase
    micro_batches: list[dict[str, tf.Tensor]]
    first_rows: list[int]  # each micro-batch's first row's place in the global batch
    counts: dict[str, int]  # the task's, of these rows
    tokens: int  # real ones, no padding


def step_batches(run: Run) -> Iterator[tuple[StepBatch, float]]:
    """The global batches of the run's phase from its progress on, with the seconds that the step waited for each.

    All that the host does for an input is done in the background thread, the making of tensors and the copy to a GPU
    too. (Eagerly made int32 tensors stay in the host's memory: TensorFlow copies those when the step takes them.)

    Raises:
        DamagedData: the data hold an id that the model has not.
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
    """This rank's part of the global batch of this number, of so many rows over all ranks.

    Raises DamagedData as step_batches does.
    """
    taken = step_positions(number, rows, world.rank, world.size, recipe.execution.micro_batch)
    together = source.assemble(np.concatenate([positions for positions, _ in taken]))
    if (highest := together["input_ids"].max()) >= recipe.model.vocab_size:
        raise DamagedData(
            f"the data in {dataset.path} hold id {highest}, the model has {recipe.model.vocab_size} entries; "
            f"see which shard of a token store is damaged with: bert-horovod verify --data_dir {dataset.path}"
        )
    parts = {name: np.split(array, len(taken)) for name, array in together.items()}
    with tf.device("/GPU:0" if has_gpu() else "/CPU:0"):
        tensors = [as_tensors({name: part[k] for name, part in parts.items()}) for k in range(len(taken))]
    first_rows = [first_row for _, first_row in taken]
    tokens = np.count_nonzero(together["sequence_ids"])
    return StepBatch(number, tensors, first_rows, task.batch_counts(together), tokens)


def step_inputs(
    recipe: Recipe,
    progress: Progress,
    counts: dict[str, float],
    learning_rate: float,
    micro_batches_of_all: int,
) -> StepInputs:
    """What the micro-batches of the next step share.

    Args:
        recipe: the run's.
        progress: before the step.
        counts: the task's, over all ranks.
        learning_rate: of the step.
        micro_batches_of_all: ranks times K.
    """
    # In float16 backward runs at the magnitude of a micro-batch mean times the loss scale.
    half = recipe.numerics.precision == "float16"
    scale = progress.loss_scale * micro_batches_of_all if half else 1.0
    key = keyed_hash(recipe.data.seed, _DROPOUT_STREAM, index=np.array([progress.step], np.uint64))
    return StepInputs(
        {name: tf.constant(value, tf.float32) for name, value in counts.items()},
        tf.constant(scale, tf.float32),
        tf.constant(key, tf.uint64),
        {name: tf.constant(values, tf.float32) for name, values in progress.task.items()},
        UpdateInputs(tf.constant(learning_rate, tf.float32), tf.constant(progress.updates + 1, tf.float32)),
    )
