"""Reads checkpoints (saving.py writes them). A checkpoint is complete or absent, and is a Hugging Face directory.

    output_dir/checkpoints/step-00001000/
        config.json  model.safetensors  tokenizer_config.json ...      files that transformers loads
        vocab.txt, or tokenizer.json for a tokenizer that is not BERT's
        README.md                          the model card: runs/model_card.py
        training/optimizer.safetensors     slots, as slot/parameter
        training/state.json                progress, position, recipe, store, version, time
        training/rank-00000.safetensors    state of one rank alone, if the exchange has such state: runs/rank_parts.py
        training/hashes.json               SHA-256 of every other file

Gradient accumulators are never stored, because a checkpoint is taken between optimizer steps.

best.json, in a fine-tuning's output directory, names the checkpoint with the best dev score.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from bert_horovod.errors import DamagedData, ReportedError, RunError, unreadable
from bert_horovod.interchange.safetensors_file import WEIGHTS_FILE, map_file
from bert_horovod.recipe.fields import section_from_table
from bert_horovod.recipe.settings import Objective, Phase
from bert_horovod.storage.reading import TEXT_BYTES, Seconds, hash_file, read_record

HASHES = "training/hashes.json"
STATE = "training/state.json"
OPTIMIZER = "training/optimizer.safetensors"
NEWEST = "model"  # a link in output_dir, to the newest checkpoint
FILES = ("config.json", WEIGHTS_FILE, "tokenizer_config.json", OPTIMIZER, STATE)  # in every checkpoint
_TOKENIZER_FILES = ("vocab.txt", "tokenizer.json")  # one of them is in every checkpoint
_NAME = re.compile(r"step-([0-9]{8,18})")
_PART = re.compile(r"training/rank-\d{5}\.safetensors")
OTHER_FILE = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")  # a path inside the checkpoint, without ".."


class _State(TypedDict):  # state.json, as saving.py writes it
    progress: dict[str, Any]  # of runs.state.Progress
    position: dict[str, int]
    recipe: dict[str, Any]
    store: str
    version: str
    time: Seconds


def recorded_pair(directory: Path) -> str | None:
    """The objective.pair of the checkpoint's recipe; None if this program did not write the checkpoint."""
    return recorded(
        directory,
        lambda state: section_from_table(Objective, {"pair": state["recipe"]["objective"]["pair"]}, "objective").pair,
    )


def recorded_length(directory: Path) -> int | None:
    """The sequence length of the phase in which the checkpoint was saved; None if this program did not write it."""

    def read(state: dict[str, Any]) -> int:
        length = state["recipe"]["phase"][state["position"]["phase"]]["sequence_length"]
        return section_from_table(Phase, {"sequence_length": length}, "phase").sequence_length

    return recorded(directory, read)


def saved_at(directory: Path) -> float:
    """The time at which the checkpoint was saved, in seconds since the epoch; 0 if it does not contain that."""
    return recorded(directory, lambda state: state["time"]) or 0.0


def recorded(directory: Path, read: Callable[[dict[str, Any]], Any]) -> Any:
    """What `read` returns for state.json; None if that file is missing or another program wrote it."""
    try:
        return read(state_of(directory))
    except (OSError, ValueError, LookupError, TypeError, ReportedError):
        return None


def recorded_hash(directory: Path) -> str | None:
    """SHA-256 of a checkpoint's weights as its hashes.json says; None if this program did not write the checkpoint."""
    try:
        return read_record(directory / HASHES, dict[str, str], inside=directory)[WEIGHTS_FILE]
    except (OSError, ValueError, LookupError):
        return None


def is_removed(directory: Path) -> bool:
    """Whether a run's checkpoint is there no longer: a run renames it before it deletes its files."""
    return step_of(directory.name) is not None and not directory.exists()


def whole_checkpoints(output_dir: Path) -> Iterator[Path]:
    """The checkpoints whose files match their hashes, newest first; prints the names of the others."""
    seen: set[Path] = set()
    while remaining := [path for path in paths(output_dir) if path not in seen]:
        path = remaining[-1]  # listed anew each time: the run may save, and remove what is read here
        seen.add(path)
        try:
            damaged = damaged_files(path)
        except RunError as error:  # an error of the disk, which the user may not be able to repair
            print(f"bert-horovod: {error}. Taking the checkpoint before {path.name}", file=sys.stderr)
            continue
        if not damaged:
            yield path
        elif not is_removed(path):
            say_damaged(path, damaged)


def say_damaged(path: Path, damage: list[str]) -> None:
    """Say on stderr that a run's checkpoint is passed over, and why."""
    print(
        f"bert-horovod: the checkpoint {path} is damaged ({', '.join(damage)}); taking the one before", file=sys.stderr
    )


def all_damaged(output_dir: Path) -> DamagedData:
    """The error about a run whose checkpoints are all damaged."""
    return DamagedData(
        f"all checkpoints in {output_dir / 'checkpoints'} are damaged; remove them to start from the beginning"
    )


def path_of(output_dir: Path, step: int) -> Path:
    """The directory of a step's checkpoint."""
    return paths_in(output_dir) / f"step-{step:08d}"


def paths_in(output_dir: Path) -> Path:
    """The directory of all of a run's checkpoints."""
    return output_dir / "checkpoints"


def paths(output_dir: Path) -> list[Path]:
    """All checkpoints of the run, oldest first; ignores other entries of the directory, such as a user's copies."""
    by_step = {step: path for path in paths_in(output_dir).glob("step-*") if (step := step_of(path.name)) is not None}
    return [by_step[step] for step in sorted(by_step) if by_step[step].is_dir()]


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None if this is no checkpoint's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and name == f"step-{int(match[1]):08d}" else None


def state_of(path: Path) -> dict[str, Any]:
    """The content of a checkpoint's state.json; raises OSError or ValueError."""
    return read_record(path / STATE, _State, inside=path)


def damaged_files(path: Path) -> list[str]:
    """Names of files that do not match their hashes, and of files that every checkpoint has but hashes.json lacks."""
    try:
        expected = read_record(path / HASHES, dict[str, str], inside=path)
    except (OSError, ValueError) as error:
        _refuse_unreadable(error, path / HASHES)
        return [HASHES]
    unlisted = [name for name in FILES if name not in expected]
    if not any(name in expected for name in _TOKENIZER_FILES):
        unlisted.append(_TOKENIZER_FILES[0])
    return unlisted + [name[:200] for name, digest in expected.items() if not _is_whole(path, name, digest)]


def _refuse_unreadable(error: Exception, path: Path) -> None:
    """Raise the error of `unreadable`, if any: the file may be undamaged, so the run must not skip this checkpoint."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and (reported := unreadable(cause, path)):
        raise reported from error


def _is_whole(path: Path, name: str, digest: str) -> bool:
    try:
        if name not in FILES and not OTHER_FILE.fullmatch(name):
            return False
        if name in (WEIGHTS_FILE, OPTIMIZER) or _PART.fullmatch(name):
            map_file(path / name, inside=path)  # before hashing: a sparse file may be terabytes long
        elif (path / name).stat().st_size > TEXT_BYTES:
            return False
        return hash_file(path / name, inside=path) == digest
    except (OSError, ReportedError) as error:
        _refuse_unreadable(error, path / name)
        return False


BEST = "best.json"  # finetuning/outcome.py writes it


@dataclass
class Best:
    """The content of best.json."""

    metric: str  # the dev score that decides
    score: float
    step: int  # of the checkpoint, which saving.py keeps
    evaluations_since: int  # without a better score
    last_step: int  # of the last evaluation
    ended: bool  # whether the run has ended for that


def best_record(output_dir: Path) -> Best | None:
    """What a run has recorded of its best checkpoint; None if it has not, the file is damaged or that is gone."""
    try:
        best = read_record(output_dir / BEST, Best, inside=output_dir)
        return best if path_of(output_dir, best.step).is_dir() else None
    except (OSError, ValueError):
        return None
