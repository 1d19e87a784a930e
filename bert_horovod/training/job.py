"""A job: a user's request to train a recipe on a task and a dataset, checked before ranks wait."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.batches.source import Dataset
from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.stores import Stores
from bert_horovod.costs.derived import derive
from bert_horovod.errors import UserError
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.directory import Start
from bert_horovod.tasks.base import Task
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.initial import Initial
from bert_horovod.wording import gibibytes


@dataclass(frozen=True)
class Job:
    """The request for a run: recipe, task, dataset, output directory and options."""

    recipe: Recipe
    task: Task
    dataset: Dataset
    output_dir: Path
    initial: Initial | None = None  # the checkpoint to start from
    max_steps: int | None = None  # counted from the run's beginning; the schedule does not change
    stop_at: float | None = None  # when the run stops, in seconds since the epoch; set on rank 0 only
    evaluator: Callable[..., Any] | None = None  # called with the Run; None: the task's means (hooks/evaluation.py)
    hooks: tuple[Callable[..., Any], ...] = ()  # further hooks, each called with the Run (hooks.base.Hook)

    @property
    def start(self) -> Start:
        """What run.json records of `initial`; raises the errors of Initial.start."""
        return self.initial.start if self.initial else Start()


def pretraining_job(
    recipe: Recipe, stores: Store | Stores, output_dir: Path, index_dir: Path | None = None, **options
) -> Job:
    """Pre-training on a token store, or on several by name; `options` are further fields of Job."""
    stores = {"": stores} if isinstance(stores, Store) else stores
    task = Pretraining(recipe.objective.pairs, recipe.objective.pair_name, tuple(filter(None, stores)))
    return Job(recipe, task, dataset_of(stores, recipe, index_dir), output_dir, **options)


def check_size(recipe: Recipe, task: Task, world_size: int) -> None:
    """Raise UserError if the ranks cannot share a batch, or the task's parameters do not fit this host's memory."""
    for phase in recipe.phase:  # the last phase has the most parameters
        parameters = derive(recipe, phase, world_size, parameters=task.parameters).parameters
        share = world_size * recipe.execution.micro_batch
        if recipe.optimizer.clipping == "bucket" and phase.global_batch % share:
            raise UserError(
                f"global_batch = {phase.global_batch}: with optimizer.clipping = 'bucket' each micro-batch is clipped "
                f"alone, and all must have execution.micro_batch = {recipe.execution.micro_batch} rows; expected a "
                f"multiple of {share}, which {world_size} rank(s) share"
            )
    needed = 4 * (parameters + slot_numbers(recipe, task.parameters(recipe.model)))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise UserError(
            f"[model] has {parameters:,} parameters, with the optimizer {gibibytes(needed)}; this host has "
            f"{gibibytes(memory)} of memory. Make the model smaller"
        )
