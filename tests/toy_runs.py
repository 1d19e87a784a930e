"""Runs on a toy store, and what they leave behind: the tests' only way to what trains and saves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.collectives.world import World
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from bert_horovod.runs.saving import buffers_for, take_snapshot, write_checkpoint_files
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training import loop
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.job import pretraining_job
from bert_horovod.training.run import Run
from tests.toys import toy_recipe, toy_recipe_table


def train(store: Store, output_dir: Path, max_steps: int | None = None, **sections: dict[str, Any]) -> Path:
    """Train the toy recipe in this process; returns `output_dir`, in which a run that is there is resumed."""
    return train_recipe(toy_recipe(**sections), store, output_dir, max_steps=max_steps)


def train_recipe(recipe: Recipe, store: Store, output_dir: Path, world: World | None = None, **job: Any) -> Path:
    """Train a recipe in this process; `job`: more of what a Job has. Returns `output_dir`."""
    output_dir.mkdir(parents=True, exist_ok=True)
    loop.train(pretraining_job(recipe, store, output_dir, **job), world or World())
    return output_dir


def train_rank(world: World, store: Path, output_dir: Path, recipe: Recipe, **job: Any) -> None:
    """As train_recipe: a job for two_ranks."""
    train_recipe(recipe, open_store(store), output_dir, world, **job)


def at_step(number: int, work: Callable[[Run], object]) -> type[Hook]:
    """A hook that does something after a step of its run."""

    class AtStep(Hook):
        def step(self, event: StepEvent) -> None:
            if event.step == number:
                work(self.run)

    return AtStep


def new_state(
    parameters: dict[str, np.ndarray],
    progress: Progress,
    slots: dict[str, dict[str, np.ndarray]] | None = None,
    rule: str = "adamw",
) -> TrainingState:
    """The state of a run; without slots those of the rule are 0."""
    shapes = {name: value.shape for name, value in parameters.items()}
    return TrainingState(parameters, slot_shapes(toy_recipe(optimizer={"name": rule}), shapes), progress, slots)


def pretrain_arguments(directory: Path, store: Store, output_dir: Path, **sections: dict[str, Any]) -> list[str]:
    """The flags of a run of the toy recipe, which is written into `directory`."""
    recipe = directory / "recipe.toml"
    recipe.write_text(recipe_to_toml(recipe_from_table(toy_recipe_table(**sections))), encoding="utf-8")
    return ["--recipe", str(recipe), "--data_dir", str(store.path), "--output_dir", str(output_dir)]


def save(output_dir: Path, state: TrainingState, recipe: Recipe, store: Store, position: dict[str, int]) -> Path:
    """Write a checkpoint; returns its path."""
    output_dir.mkdir(parents=True, exist_ok=True)
    snapshot = take_snapshot(state, buffers_for(state), recipe, store.hash, position)
    task = Pretraining(recipe.objective.pairs)
    return write_checkpoint_files(output_dir, snapshot, recipe, task, StoreDataset(store, recipe))


def logged(output_dir: Path) -> list[dict]:
    """All objects of metrics.jsonl."""
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def metrics(output_dir: Path) -> list[dict]:
    """The objects of metrics.jsonl that tell of training steps."""
    return [line for line in logged(output_dir) if "loss" in line]


def losses(output_dir: Path) -> list[float]:
    """The loss of each step that is logged."""
    return [line["loss"] for line in metrics(output_dir)]


def incidents(output_dir: Path) -> list[str]:
    """What is told of a run beside its metrics."""
    return [line["incident"] for line in logged(output_dir) if "incident" in line]


def training_state(output_dir: Path) -> dict:
    """state.json of the newest checkpoint."""
    return json.loads((newest(output_dir) / "training" / "state.json").read_text(encoding="utf-8"))


def newest(output_dir: Path) -> Path:
    """The newest checkpoint."""
    return max((output_dir / "checkpoints").glob("step-*"))


def assert_same_files(one: Path, other: Path, *more: str) -> None:
    """The newest checkpoints of two runs have the same bytes of parameters, of slots and of more files."""
    for file in ("model.safetensors", "training/optimizer.safetensors", *more):
        assert (newest(one) / file).read_bytes() == (newest(other) / file).read_bytes(), file
