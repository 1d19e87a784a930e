"""The status of a run, and the time that it still needs, read from its directory alone, on any host that sees it."""

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recorded
from bert_horovod.runs.checkpoint import paths, saved_at, step_of
from bert_horovod.runs.metrics_lines import Lines, read_lines
from bert_horovod.runs.mirror import lag_of
from bert_horovod.runs.sessions import Spent, spent
from bert_horovod.runs.status_files import Sign, read_sign

_TAIL_BYTES = 1 << 18  # read from the end of metrics.jsonl: more than its last lines


@dataclass(frozen=True)
class RunStatus:
    """The status of a run, from its directory; None: the directory does not tell."""

    state: str  # "running", "silent", "dead", "unknown" or how it ended
    sign: Sign | None
    sign_age_s: float | None
    step: int | None  # by the newest of sign, line of metrics and checkpoint
    loss: float | None  # nats, of the newest line of metrics; None: not finite, or there is none
    diverged: bool  # whether that loss is not finite
    unreadable_lines: int  # among the newest lines of metrics
    last_checkpoint: str | None
    checkpoint_age_s: float | None
    left_s: float | None  # until the last step
    mirror: str | None  # how far execution.mirror is behind, for people
    spent: Spent | None = None  # None: the run's starts were not recorded


def run_status(run: Path) -> RunStatus:
    """Read the status of a run and change nothing; raises UserError if the directory is not a run's."""
    if not (run / "run.json").is_file():
        raise UserError(f"{run} is not a run's directory: it has no run.json; expected what was given as --output_dir")
    sign, read, now = read_sign(run), _newest_lines(run), time.time()
    saved, saved_s = _newest_saved(run)
    newest = read.steps[-1] if read.steps else {}
    step = _step(sign, newest, saved, saved_s)
    running = state_by_sign(sign)
    return RunStatus(
        running,
        sign,
        now - sign.time if sign else None,
        step,
        newest.get("loss"),
        bool(newest) and newest["loss"] is None,
        read.unreadable,
        str(saved) if saved else None,
        now - saved_s if saved else None,
        _time_left(run, step, sign, read) if running == "running" else None,
        lag_of(run),
        spent(run),
    )


def _step(sign: Sign | None, newest: dict[str, Any], saved: Path | None, saved_s: float) -> int | None:
    """The run's step; what is newer than its sign may tell of a later one."""
    since_s = sign.time if sign else 0.0
    steps = [sign.step] if sign else []
    if newest and (sign is None or (newest.get("time") or 0.0) > since_s):
        steps.append(newest["step"])
    if saved is not None and saved_s > since_s:
        steps.append(step_of(saved.name) or 0)
    return max(steps, default=None)


def state_by_sign(sign: Sign | None) -> str:
    """The state of a run by its last sign of life, as in RunStatus."""
    if sign is None:
        return "unknown"
    if sign.ended:
        return sign.ended
    if sign.is_gone():
        return "dead"
    return "running" if sign.is_young() else "silent"


def _newest_lines(run: Path) -> Lines:
    """The newest lines of metrics.jsonl; none if it cannot be read."""
    try:
        return read_lines(run / "metrics.jsonl", _TAIL_BYTES)
    except OSError:
        return Lines([], 0)


def _newest_saved(run: Path) -> tuple[Path | None, float]:
    """The newest checkpoint, and when it was saved, in seconds since the epoch."""
    for path in reversed(paths(run)):
        with contextlib.suppress(FileNotFoundError):  # the run has removed it in this moment
            return path, saved_at(path) or path.stat().st_mtime  # a copy of a run has other times
    return None, 0.0


def _time_left(run: Path, step: int | None, sign: Sign | None, read: Lines) -> float | None:
    if sign is None or step is None:
        return None
    try:
        return seconds_left(load_recorded(run / "recipe.toml"), read.steps, step, sign.last_step)
    except ReportedError:
        return None


_LINES = 5  # the newest ones: one may be of an interval in which the run was resumed and compiled its step


def seconds_left(recipe: Recipe, steps: Sequence[dict[str, Any]], step: int, last_step: int) -> float | None:
    """Seconds from `step` to `last_step`; None until a line tells of steps without the first one, which compiles.

    `steps`: lines of metrics about training steps, oldest first. A step of another phase is taken to need time in
    proportion to its tokens.
    """
    paces = [pace for line in steps[-2 * _LINES :] if (pace := _seconds_per_token(recipe, line)) is not None]
    if not paces:
        return None
    return statistics.median_low(paces[-_LINES:]) * max(0, recipe.positions(last_step) - recipe.positions(step))


def _seconds_per_token(recipe: Recipe, line: dict[str, Any]) -> float | None:
    """Seconds per position of a row; None for the first line of a phase, whose interval has the compilation."""
    begin = 0
    for number, phase in enumerate(recipe.phase):
        if line["step"] <= begin + phase.steps or number == len(recipe.phase) - 1:
            break
        begin += phase.steps
    if line["step"] - begin <= (recipe.execution.log_steps if number else 1):
        return None
    return line["step_s"] / (phase.global_batch * phase.sequence_length)
