"""Runs of the real command on a toy store, and what they leave behind."""

import json
from pathlib import Path

from bert_horovod.corpus.store import Store
from bert_horovod.recipe.reading import recipe_from_table, recipe_to_toml
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.saving import buffers_for, take_snapshot, write
from bert_horovod.runs.state import TrainingState
from tests.toys import toy_recipe_table

PROJECT = Path(__file__).resolve().parents[1]


def pretrain_arguments(directory: Path, store: Store, output_dir: Path, **sections) -> list[str]:
    """The flags of a run of the toy recipe, which is written into `directory`."""
    recipe = directory / "recipe.toml"
    recipe.write_text(recipe_to_toml(recipe_from_table(toy_recipe_table(**sections))), encoding="utf-8")
    return ["--recipe", str(recipe), "--data_dir", str(store.path), "--output_dir", str(output_dir)]


def save(output_dir: Path, state: TrainingState, recipe: Recipe, store: Store, position: dict[str, int]) -> Path:
    """Write a checkpoint; returns its path."""
    snapshot = take_snapshot(state, buffers_for(state), recipe, store, position)
    return write(output_dir, snapshot, recipe, store)


def metrics(output_dir: Path) -> list[dict]:
    """The objects of metrics.jsonl that tell of training steps."""
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "loss" in line]


def training_state(output_dir: Path) -> dict:
    """state.json of the newest checkpoint."""
    return json.loads((newest(output_dir) / "training" / "state.json").read_text(encoding="utf-8"))


def newest(output_dir: Path) -> Path:
    """The newest checkpoint."""
    return max((output_dir / "checkpoints").glob("step-*"))
