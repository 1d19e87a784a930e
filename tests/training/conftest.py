"""A toy store, and runs of the real command on it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_horovod.corpus.store import Store
from bert_horovod.recipe.reading import recipe_from_table, recipe_to_toml
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.saving import buffers_for, take_snapshot, write
from bert_horovod.runs.state import TrainingState
from tests.horovod_runs import run_ranks
from tests.toys import SMALL_VOCABULARY, toy_recipe_table, write_toy_store

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    """About 600 windows of 32 tokens, a tenth of the sections held out."""
    return write_toy_store(tmp_path_factory.mktemp("data") / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)


@pytest.fixture(scope="session")
def pretrain(tmp_path_factory, store) -> Callable[..., Path]:
    """A function that runs run_pretraining.py, alone or under horovodrun, and returns its output directory."""

    def run(ranks: int = 1, output_dir: Path | None = None, flags: tuple[str, ...] = (), **sections) -> Path:
        output_dir = output_dir or tmp_path_factory.mktemp("run")
        arguments = pretrain_arguments(tmp_path_factory.mktemp("recipe"), store, output_dir, **sections) + list(flags)
        script = PROJECT / "run" / "run_pretraining.py"
        if ranks > 1:
            done = run_ranks(ranks, script, *arguments)
        else:
            done = subprocess.run(
                [sys.executable, script, *arguments],
                capture_output=True,
                text=True,
                timeout=300,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return output_dir

    return run


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
