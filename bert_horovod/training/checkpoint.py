"""Checkpoints: whole or not there, and a Hugging Face directory each; how they are read (saving.py writes them).

    output_dir/checkpoints/step-00001000/
        config.json  model.safetensors  vocab.txt  tokenizer_config.json ...      what transformers loads
        training/optimizer.safetensors     slots, as slot/parameter
        training/state.json                progress, recipe, store, versions
        training/hashes.json               SHA-256 of every other file

Gradient accumulators are never stored: a checkpoint lies between optimizer steps.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.training.state import Progress

HASHES = "training/hashes.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back, as NumPy arrays."""

    path: Path
    parameters: dict[str, np.ndarray]
    slots: dict[str, dict[str, np.ndarray]]
    progress: Progress


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


def saved_at(directory: Path) -> float:
    """When a checkpoint was saved, in seconds since the epoch; 0 if it does not say."""
    try:
        return float(_state(directory)["time"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0


def load_newest(output_dir: Path) -> Checkpoint | None:
    """The newest checkpoint whose every hash is right; damaged ones are named on stderr. None if there is none.

    Raises UserError if there are checkpoints and all of them are damaged.
    """
    found = paths(output_dir)
    for path in reversed(found):
        damaged = _damaged_files(path)
        if not damaged:
            return _load(path)
        print(
            f"bert-horovod: the checkpoint {path} is damaged ({', '.join(damaged)}); taking the one before",
            file=sys.stderr,
        )
    if found:
        raise UserError(
            f"all checkpoints in {output_dir / 'checkpoints'} are damaged; remove them to start from the beginning"
        )
    return None


def paths(output_dir: Path) -> list[Path]:
    """The checkpoints that there are, oldest first."""
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


def _damaged_files(path: Path) -> list[str]:
    try:
        expected = json.loads((path / HASHES).read_text(encoding="utf-8"))
        return [
            name for name, digest in expected.items() if not (path / name).is_file() or hash_file(path / name) != digest
        ]
    except (OSError, ValueError, AttributeError):
        return [HASHES]


def hash_file(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
