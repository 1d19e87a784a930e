"""Checkpoints: whole or not there, and a Hugging Face directory each.

    output_dir/checkpoints/step-00001000/
        config.json  model.safetensors  vocab.txt  tokenizer_config.json ...      what transformers loads
        training/optimizer.safetensors     slots, as slot/parameter
        training/state.json                progress, recipe, store, versions
        training/hashes.json               SHA-256 of every other file

Gradient accumulators are never stored: a checkpoint lies between optimizer steps.
"""

import hashlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bert_horovod import __version__
from bert_horovod.config import Recipe, recipe_to_table
from bert_horovod.corpus.store import Store
from bert_horovod.disk import sync
from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import read_directory, write_directory
from bert_horovod.training.state import Progress, TrainingState

HASHES = "training/hashes.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back, as NumPy arrays."""

    path: Path
    parameters: dict[str, np.ndarray]
    slots: dict[str, dict[str, np.ndarray]]
    progress: Progress


def save(output_dir: Path, state: TrainingState, recipe: Recipe, store: Store, position: dict[str, int]) -> Path:
    """Write a checkpoint under a temporary name, sync and hash it, rename it; then remove the oldest ones.

    Args:
      position: where the run is in its data (phase, epoch, row), for people; it follows from the step.

    Raises:
      UserError: no room, or another error of the disk; older checkpoints stay as they are.
    """
    final = output_dir / "checkpoints" / f"step-{state.progress.step:08d}"
    temporary = final.with_name(f".{final.name}.partial")
    try:
        for left in final.parent.glob(".step-*.partial"):  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        (temporary / "training").mkdir(parents=True)
        write_directory(
            temporary,
            recipe.model,
            recipe.objective.pairs,
            state.arrays(),
            store.vocabulary,
            store.manifest["vocabulary"]["lowercase"],
        )
        slots = {
            f"{slot}/{name}": variable.numpy()
            for slot, variables in state.slots.items()
            for name, variable in variables.items()
        }
        safetensors.numpy.save_file(slots, temporary / "training" / "optimizer.safetensors")
        # safetensors makes the file readable for its owner alone.
        (temporary / "training" / "optimizer.safetensors").chmod((temporary / "config.json").stat().st_mode & 0o777)
        record = {
            "progress": asdict(state.progress),
            "position": position,
            "recipe": recipe_to_table(recipe),
            "store": store.hash,
            "version": __version__,
        }
        (temporary / "training" / "state.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (temporary / HASHES).write_text(json.dumps(_hashes(temporary), indent=1) + "\n", encoding="utf-8")
        _sync(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        sync(final.parent)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"cannot write the checkpoint {final}: {getattr(error, 'strerror', None) or error}; "
            "earlier checkpoints are whole: make room and run the same command again"
        ) from error
    # Later ones are damaged, else the run would have resumed from them: they do not count.
    for old in [path for path in _paths(output_dir) if path <= final][: -recipe.execution.keep_checkpoints]:
        _remove(old)
    return final


def recorded_pair(directory: Path) -> str | None:
    """The objective.pair that a checkpoint was trained with, as its state says; None if no run of ours wrote it."""
    try:
        return _state(directory)["recipe"]["objective"]["pair"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def recorded_length(directory: Path) -> int | None:
    """The sequence length of the phase that a checkpoint was saved in; None if no run of ours wrote it."""
    try:
        record = _state(directory)
        return record["recipe"]["phase"][record["position"]["phase"]]["sequence_length"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def load_newest(output_dir: Path) -> Checkpoint | None:
    """The newest checkpoint whose every hash is right; damaged ones are named on stderr. None if there is none.

    Raises UserError if there are checkpoints and all of them are damaged.
    """
    paths = _paths(output_dir)
    for path in reversed(paths):
        damaged = _damaged_files(path)
        if not damaged:
            return _load(path)
        print(
            f"bert-horovod: the checkpoint {path} is damaged ({', '.join(damaged)}); taking the one before",
            file=sys.stderr,
        )
    if paths:
        raise UserError(
            f"all checkpoints in {output_dir / 'checkpoints'} are damaged; remove them to start from the beginning"
        )
    return None


def _remove(path: Path) -> None:
    """Take a checkpoint away whole; what cannot be deleted now goes with the next one."""
    temporary = path.with_name(f".{path.name}.partial")
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def _paths(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "checkpoints").glob("step-[0-9]*"))


def _load(path: Path) -> Checkpoint:
    record = _state(path)
    slots: dict[str, dict[str, np.ndarray]] = {}
    for key, value in safetensors.numpy.load_file(path / "training" / "optimizer.safetensors").items():
        slot, name = key.split("/", 1)
        slots.setdefault(slot, {})[name] = value
    return Checkpoint(path, read_directory(path).parameters, slots, Progress(**record["progress"]))


def _state(path: Path) -> dict[str, Any]:
    return json.loads((path / "training" / "state.json").read_text(encoding="utf-8"))


def _hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): _hash_file(path) for path in files if path != directory / HASHES}


def _damaged_files(path: Path) -> list[str]:
    try:
        expected = json.loads((path / HASHES).read_text(encoding="utf-8"))
        return [
            name
            for name, digest in expected.items()
            if not (path / name).is_file() or _hash_file(path / name) != digest
        ]
    except (OSError, ValueError, AttributeError):
        return [HASHES]


def _hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(directory: Path) -> None:
    for path in directory.rglob("*"):
        sync(path)
    sync(directory)
