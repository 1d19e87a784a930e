"""Keeps XLA's choices on a GPU with the run, so that all its starts and all its ranks compute alike, bit for bit.

Rank 0 tunes at the first start; the file lies in the output directory, and each resume and each rank reads it. A new
run begins with the choices of the user's earlier runs on such a GPU, so that XLA searches only for new programs.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TypedDict

from bert_horovod.collectives.world import World, from_rank_0
from bert_horovod.costs.buckets import by_size
from bert_horovod.errors import DamagedData, ReportedError
from bert_horovod.runtime import devices
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import gpu_details, has_gpu
from bert_horovod.storage.reading import read_record
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.building import build_step
from bert_horovod.training.inputs import StepBatch
from bert_horovod.training.rechecking import Recheck
from bert_horovod.training.run import Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StepInputs

FILE = "autotuning.json"
MOST_CHOICES, MOST_FILES = 2000, 8  # of earlier runs; a run has some dozens, a file is of one GPU and TensorFlow


def share_choices(run: Run, batch: StepBatch, inputs: StepInputs, step: TrainStep | None) -> None:
    """Give all ranks rank 0's choices, those of an earlier start too, before programs of new shapes are compiled."""
    if not has_gpu():
        return
    devices.add_choices(from_rank_0(_kept(run) if run.world.rank == 0 else {}, run.world, "choices"))
    if run.world.size > 1:
        if run.world.rank == 0:
            if step is None:
                recipe = run.phase.recipe
                plan = by_size(run.state.shapes, recipe.execution.bucket_bytes)
                step = build_step(recipe, run.task, run.state, World(), plan, 1)
            Recheck(step).not_finite(batch.micro_batches[-1:], batch.first_rows[-1:], inputs, 1.0)
        devices.add_choices(from_rank_0(devices.choices(), run.world, "choices.tuned"))


def keep_choices(run: Run) -> None:
    """Write rank 0's choices to the output directory, after a step has compiled a phase's programs."""
    if run.world.rank or not has_gpu() or not (chosen := devices.choices()):
        return
    content = {"made_on": _made_on(), "choices": chosen}
    write_atomically(run.job.output_dir / FILE, json.dumps(content, indent=1) + "\n")
    earlier = {name: text for name, text in _of_earlier_runs().items() if name not in chosen}
    content["choices"] = dict([*earlier.items(), *chosen.items()][-MOST_CHOICES:])
    with contextlib.suppress(OSError, ReportedError, RuntimeError):  # a home without room or rights, or none at all
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1) + "\n")
        oldest_first = sorted(path.parent.glob("autotuning-*.json"), key=lambda each: each.stat().st_mtime)
        for old in oldest_first[:-MOST_FILES]:
            old.unlink()


def _kept(run: Run) -> dict[str, str]:
    """The choices of the run's earlier starts; says it if they are of another GPU or TensorFlow."""
    path = run.job.output_dir / FILE
    if not path.exists():
        return _of_earlier_runs()
    try:
        made_on, chosen = _read(path)
    except (OSError, ValueError) as error:
        raise DamagedData(
            f"{path} is damaged ({error}); remove it: the run then tunes anew and goes on to rounding"
        ) from error
    if made_on != _made_on():
        run.say(
            f"{FILE} was made on {made_on}, this is {_made_on()}: matrix products are tuned anew, and the run goes on "
            "to rounding, not bit for bit"
        )
    return chosen


class _Choices(TypedDict):
    made_on: str
    choices: dict[str, str]


def _read(path: Path) -> tuple[str, dict[str, str]]:
    content = read_record(path, _Choices, inside=path.parent)
    return content["made_on"], content["choices"]


def cache_file() -> Path:
    """The choices of all runs of this user on such a GPU, with this TensorFlow."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bert_horovod" / f"autotuning-{hashlib.sha256(_made_on().encode()).hexdigest()[:16]}.json"


def _of_earlier_runs() -> dict[str, str]:
    """Nothing if there were none; a damaged file is written anew."""
    try:
        made_on, chosen = _read(cache_file())
    except (OSError, ValueError, RuntimeError):
        return {}
    return chosen if made_on == _made_on() else {}


def _made_on() -> str:
    details = gpu_details() or {}
    return f"{details.get('device_name', 'a GPU')} with TensorFlow {tf.__version__}"
