"""The status of a run, read from its directory alone, on any host that sees the directory."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runs.status_files import Sign, read_sign
from bert_horovod.storage.reading import open_regular

_TAIL_BYTES = 1 << 18  # read from the end of metrics.jsonl: more than its last lines


@dataclass(frozen=True)
class RunStatus:
    """The status of a run, from its directory; None: the directory does not tell."""

    state: str  # "running", "silent", "dead", "unknown" or how it ended
    sign: Sign | None
    sign_age_s: float | None
    step: int | None  # of the newest line of metrics
    loss: float | None  # nats, at that step
    last_checkpoint: str | None
    checkpoint_age_s: float | None
    left_s: float | None  # until the last step


def run_status(run: Path) -> RunStatus:
    """Read the status of a run and change nothing; raises UserError if the directory is not a run's."""
    if not (run / "run.json").is_file():
        raise UserError(f"{run} is not a run's directory: it has no run.json; expected what was given as --output_dir")
    sign, metrics, now = read_sign(run), _last_metrics(run), time.time()
    saved = newest_checkpoint(run)
    step = metrics.get("step") if sign is None else sign.step
    running = _state(sign)
    return RunStatus(
        running,
        sign,
        now - sign.time if sign else None,
        step,
        metrics.get("loss"),
        str(saved) if saved else None,
        now - saved.stat().st_mtime if saved else None,
        _time_left(run, step, sign, metrics) if running == "running" else None,
    )


def _state(sign: Sign | None) -> str:
    if sign is None:
        return "unknown"
    if sign.ended:
        return sign.ended
    if sign.is_gone():
        return "dead"
    return "running" if sign.is_young() else "silent"


def _last_metrics(run: Path) -> dict[str, Any]:
    """The newest line of metrics.jsonl that tells of a training step; empty if there is none."""
    try:
        with open_regular(run / "metrics.jsonl") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            metrics = json.loads(line)
        except ValueError:  # the first line, cut because only the tail is read, or the last, still being written
            continue
        if isinstance(metrics, dict) and "loss" in metrics and "step_s" in metrics:
            return metrics
    return {}


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the largest step in its name, complete or not; None: there is none."""
    checkpoints = [path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return max(checkpoints, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def _time_left(run: Path, step: int | None, sign: Sign | None, metrics: dict[str, Any]) -> float | None:
    """Seconds of the steps that are left, at the last measured pace; steps of other phases scale with their tokens."""
    pace = metrics.get("step_s")
    if sign is None or step is None or not isinstance(pace, int | float):
        return None
    try:
        recipe = load_recipe(run / "recipe.toml")
    except ReportedError:
        return None
    measured = _phase_of(recipe, int(metrics["step"]))
    seconds, begin = 0.0, 0
    for phase in recipe.phase:
        first, last = max(begin, step), min(begin + phase.steps, sign.last_step)
        tokens = phase.global_batch * phase.sequence_length
        share = tokens / (recipe.phase[measured].global_batch * recipe.phase[measured].sequence_length)
        seconds += max(0, last - first) * pace * share
        begin += phase.steps
    return seconds


def _phase_of(recipe: Recipe, step: int) -> int:
    """The number of the phase that has this step; steps count from 1, phases from 0."""
    end = 0
    for number, phase in enumerate(recipe.phase):
        end += phase.steps
        if step <= end:
            return number
    return len(recipe.phase) - 1
