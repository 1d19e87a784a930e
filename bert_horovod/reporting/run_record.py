"""Read a run's directory for the page: columns of metrics, pauses, incidents, its recipe, its notes."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.costs.prices import Prices
from bert_horovod.errors import UserError, file_error
from bert_horovod.recipe.fields import flat_table
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recorded, recipe_to_table
from bert_horovod.reporting.run_figures import Costs, RunClock, ending_of, figures, newest_evaluations, tiles
from bert_horovod.runs.directory import RunRecord, start_of
from bert_horovod.runs.metrics_lines import EVALUATIONS, Log, StepMetrics, read_log
from bert_horovod.runs.reference_curves import Bounds, Reference, references_of, references_of_settings
from bert_horovod.runs.sessions import spent
from bert_horovod.runs.status_files import NOTES, read_sign
from bert_horovod.storage.reading import read_record, read_text

MOST_POINTS = 1500  # of a curve; longer ones are thinned
_LEAST_POINTS = 150
_NEITHER = ("step", "phase", "epoch", "time")  # columns that are not drawn as curves
_NOTES_BYTES = 1 << 20
_NOTES_CHARACTERS = 2000  # shown of a run's notes


def schema() -> dict[str, dict[str, Any]]:
    """By name of each metric of a step: its unit, and the metric that it is a part of."""
    return {field.name: dict(field.metadata) for field in fields(StepMetrics)}


def points_of_each(runs: int) -> int:
    """Most points of a curve where so many runs are compared: the page stays of a size that browsers like."""
    return max(_LEAST_POINTS, min(MOST_POINTS, 6 * MOST_POINTS // max(runs, 1)))


def read_run(
    directory: Path, prices: Prices | None = None, ranks: int | None = None, most_points: int = MOST_POINTS
) -> dict[str, Any]:
    """The page's data of a run, in types that JSON can hold; raises UserError if the directory is not a run's."""
    if not (directory / "run.json").is_file():
        raise UserError(f"{directory} is not a run's directory: it has no run.json; expected an --output_dir")
    recipe = load_recorded(directory / "recipe.toml")
    log = _read(directory / "metrics.jsonl")
    clock = RunClock(log.columns)
    sign = read_sign(directory)
    costs = Costs(prices, spent(directory), sign.ranks if sign else ranks)
    fresh = not start_of(directory).weights
    references = references_of(recipe, _text_key(directory), fresh)
    return {
        "directory": str(directory),
        "notes": _notes(directory),
        "tiles": [list(tile) for tile in tiles(recipe, log, clock, costs, sign)],
        "figures": figures(directory, recipe, log, clock, costs, sign),
        "totals": _totals(recipe, log, clock, ending_of(sign, recipe)),
        "curves": _curves(log, clock, most_points),
        "points": _points(log, clock),
        "bands": _bands(references, clock),
        "loss_parts": _loss_parts(log),
        "without_band": _without_band(recipe, references) if fresh else "",
        "pauses": clock.pauses,
        "incidents": [
            {"step": line["step"], "text": str(line["incident"])} for line in log.events if "incident" in line
        ],
        "recipe": {key: json.dumps(value) for key, value in flat_table(recipe_to_table(recipe)).items()},
    }


def _read(path: Path) -> Log:
    """The content of metrics.jsonl; none if the file is missing."""
    try:
        return read_log(path)
    except FileNotFoundError:
        return Log()
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror}") from error


def _notes(directory: Path) -> str:
    """The beginning of the text that somebody wrote about the run; "" if there is none that can be read."""
    try:
        text = read_text(directory / NOTES, inside=directory, limit_bytes=_NOTES_BYTES).strip()
    except (OSError, ValueError):
        return ""
    return text if len(text) <= _NOTES_CHARACTERS else f"{text[:_NOTES_CHARACTERS]}..."


def _totals(recipe: Recipe, log: Log, clock: RunClock, ending: str) -> dict[str, Any]:
    """The run's line in the table of runs: by column a text or a number, None if it is not known."""
    last = log.newest[-1] if log.newest else {}
    return {
        "state": ending,
        "done": clock.last_step >= recipe.total_steps,
        "step": clock.last_step,
        "steps": recipe.total_steps,
        "loss": last.get("loss"),
        "mlm_loss": last.get("mlm_loss"),
        **newest_evaluations(log),
        **clock.end,
        "tokens_per_s": last.get("tokens_per_s"),
    }


def _points(log: Log, clock: RunClock) -> dict[str, list[Any]]:
    """By metric name, one value for each evaluation, None if it lacks it; with the columns of all axes.

    Where the training loss is a sum of losses, the sum of the held-out ones is added as held_out_loss.
    """
    lines = [line for line in log.events if any(name.startswith(EVALUATIONS) for name in line)]
    if parts := _loss_parts(log):
        held_out = [f"held_out_{name}" for name in parts]
        lines = [
            line | {"held_out_loss": sum(line[name] for name in held_out)}
            if all(line.get(name) is not None for name in held_out)
            else line
            for line in lines
        ]
    names = dict.fromkeys(name for line in lines for name, figure in line.items() if isinstance(figure, int | float))
    columns = clock.columns([line["step"] for line in lines])
    return columns | {name: [line.get(name) for line in lines] for name in names if name not in _NEITHER}


def _loss_parts(log: Log) -> list[str]:
    """The losses whose sum the training loss is; none if it is no sum."""
    parts = [name for name in log.first if name.endswith("_loss")]
    last = log.newest[-1] if log.newest else {}
    whole = math.isclose(last.get("loss") or 0, sum(last.get(name) or 0 for name in parts), rel_tol=1e-4)
    return parts if len(parts) > 1 and whole else []


def _text_key(directory: Path) -> str:
    """The key of the run's text; "" if run.json does not tell."""
    try:
        return read_record(directory / "run.json", RunRecord, inside=directory).text_key
    except (OSError, ValueError):
        return ""


def _bands(references: list[Reference], clock: RunClock) -> list[dict[str, Any]]:
    """Bands in which a metric is expected, from the reference curves of such runs, up to this run's last step."""
    bands = []
    for reference in references:
        window, last = reference.window, clock.last_step
        end = min(last, len(reference.means) * window)
        if end:
            middles = range((window + 1) // 2, end, window)
            steps = sorted({1, *middles, end})
            bounds = [reference.at(step) for step in steps]
            bands.append(_band("loss", f"expected: {reference.runs}", steps, bounds, clock))
        for mark in reference.marks if last else ():
            bounds = [Bounds(mark.low, mark.high)] * 2
            bands.append(_band(mark.metric, f"at the end: {mark.source}", [1, last], bounds, clock))
    return bands


def _without_band(recipe: Recipe, references: list[Reference]) -> str:
    """Why the loss has no band though runs of this recipe have one, on another text; "" otherwise."""
    others = [each.runs for each in references_of_settings(recipe) if each.means and each.texts]
    here = [each for each in references if each.means]
    return f"no band of normal losses: that of this recipe is for {others[0]}" if others and not here else ""


def _band(metric: str, label: str, steps: list[int], bounds: list[Bounds], clock: RunClock) -> dict[str, Any]:
    low, high = [bound.low for bound in bounds], [bound.high for bound in bounds]
    return {"metric": metric, "label": label, **clock.columns(steps), "low": low, "high": high}


def _curves(log: Log, clock: RunClock, most_points: int) -> dict[str, list[Any]]:
    """By metric name its values at training steps, None: unknown; with the columns of all axes.

    Of more lines than `most_points`, each point is the mean of as many neighbours, at the step in their middle.
    """
    steps = np.asarray(log.columns.get("step", ()))
    width = max(1, math.ceil(len(steps) / most_points))
    begins = np.arange(0, len(steps), width)
    middles = (begins + np.minimum(begins + width, len(steps)) - 1) // 2
    curves = clock.columns(steps[middles])
    for name, numbers in log.columns.items():
        if name in _NEITHER:
            continue
        column = np.asarray(numbers)
        known = ~np.isnan(column)
        if known.any():
            counts = np.add.reduceat(known, begins, dtype=np.int64)
            sums = np.add.reduceat(np.where(known, column, 0.0), begins)
            pairs = zip(sums.tolist(), counts.tolist(), strict=True)
            curves[name] = [total / count if count else None for total, count in pairs]
    return curves
