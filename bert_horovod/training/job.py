"""A job: a user's request to train a recipe on a task and a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.batches.source import Dataset
from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.stores import Stores
from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.base import Task
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.initial import Initial


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


def pretraining_job(
    recipe: Recipe, stores: Store | Stores, output_dir: Path, index_dir: Path | None = None, **options
) -> Job:
    """Pre-training on a token store, or on several by name; `options` are further fields of Job."""
    stores = {"": stores} if isinstance(stores, Store) else stores
    task = Pretraining(recipe.objective.pairs, recipe.objective.pair_name, tuple(filter(None, stores)))
    return Job(recipe, task, dataset_of(stores, recipe, index_dir), output_dir, **options)
