"""Read a run's directory for the page: columns of metrics, pauses, incidents, its recipe."""

import contextlib
import json
import math
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from bert_horovod.costs.clusters import Cluster, bill
from bert_horovod.errors import UserError, file_error
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_table
from bert_horovod.reporting.run_status import newest_checkpoint
from bert_horovod.reporting.time_left import seconds_left
from bert_horovod.runs.metrics_lines import Lines, read_lines
from bert_horovod.runs.reference_curves import Bounds, references_of
from bert_horovod.runs.status_files import read_sign
from bert_horovod.runs.step_metrics import StepMetrics
from bert_horovod.storage.reading import read_json

MOST_POINTS = 1500  # of a curve; longer ones are thinned
_PAUSE_S = 60  # a pause: the time between two lines exceeds that of their steps by more than this
_NEITHER = ("step", "phase", "epoch", "time")  # columns that are not drawn as curves
_HELD_OUT, _PROBE = "held_out_", "probe_"


def schema() -> dict[str, dict[str, Any]]:
    """By name of each metric of a step: its unit, and the metric that it is a part of."""
    return {field.name: dict(field.metadata) for field in fields(StepMetrics)}


def read_run(directory: Path, cluster: Cluster | None = None) -> dict[str, Any]:
    """The page's data of a run, in types that JSON can hold.

    Args:
        directory: an output_dir; its run may be running.
        cluster: prices and power, if they are known.

    Raises:
        UserError: the directory is not a run's, or cannot be read.
    """
    if not (directory / "run.json").is_file():
        raise UserError(f"{directory} is not a run's directory: it has no run.json; expected an --output_dir")
    recipe = load_recipe(directory / "recipe.toml")
    read = _read(directory / "metrics.jsonl")
    lines, steps = read.lines, read.steps
    clock = _Clock(steps)
    curves = _columns(steps, clock)
    return {
        "directory": str(directory),
        "summary": [*_summary(recipe, read, clock, cluster), *_place(directory)],
        "curves": _thinned(curves),
        "points": _columns([line for line in lines if _is_evaluation(line)], clock),
        "bands": _bands(recipe, _store(directory), clock),
        "pauses": clock.pauses,
        "incidents": [{"step": line["step"], "text": str(line["incident"])} for line in lines if "incident" in line],
        "recipe": _flat(recipe_to_table(recipe)),
    }


def names_of(directories: list[Path]) -> list[str]:
    """A name for each run: the last parts of its path, as few as make all names different."""
    parts = [directory.resolve().parts for directory in directories]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(parts_of_one[-count:]) for parts_of_one in parts]
        if len(set(names)) == len(names):
            break
    return names


class _Clock:
    """Hours of training and tokens at each step, computed from all lines; pauses are not counted."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.pauses: list[dict[str, float]] = []
        self._at: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]  # step, hours, tokens
        before: dict[str, Any] = {}
        for line in steps:
            step, hours, tokens = self._at[-1]
            seconds = line["step_s"] * (line["step"] - step)
            now_s, before_s = line.get("time"), before.get("time")
            gap_s = 0.0 if now_s is None or before_s is None else now_s - before_s - seconds
            if gap_s > _PAUSE_S:
                self.pauses.append({"step": line["step"], "hours": hours, "seconds": gap_s})
            tokens += (line.get("tokens_per_s") or 0.0) * seconds
            self._at.append((line["step"], hours + seconds / 3600, tokens))
            before = line

    def at(self, step: int) -> tuple[float, float]:
        """Hours and tokens at a step, interpolated between the lines around it."""
        after = next((i for i, (known, *_) in enumerate(self._at) if known >= step), len(self._at) - 1)
        (s0, *first), (s1, *second) = self._at[max(0, after - 1)], self._at[after]
        share = 1.0 if s1 == s0 else min(1.0, (step - s0) / (s1 - s0))
        hours, tokens = (a + share * (b - a) for a, b in zip(first, second, strict=True))
        return hours, tokens

    @property
    def last_step(self) -> int:
        """The step of the last line; 0 if there is none."""
        return self._at[-1][0]

    @property
    def end(self) -> tuple[float, float]:
        """Hours and tokens at the last line."""
        return self._at[-1][1:]


def _read(path: Path) -> Lines:
    """The lines of metrics.jsonl; none if the file is missing."""
    try:
        return read_lines(path)
    except FileNotFoundError:
        return Lines([], 0)
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror}") from error


def _is_evaluation(line: dict[str, Any]) -> bool:
    return any(name.startswith((_HELD_OUT, _PROBE)) for name in line)


def _columns(lines: list[dict[str, Any]], clock: _Clock) -> dict[str, list[Any]]:
    """By metric name, one value for each line, None if the line lacks it; hours and tokens are added."""
    names = dict.fromkeys(name for line in lines for name, figure in line.items() if isinstance(figure, int | float))
    columns: dict[str, list[Any]] = {"step": [line["step"] for line in lines]}
    places = [clock.at(step) for step in columns["step"]]
    columns |= {"hours": [hours for hours, _ in places], "tokens": [tokens for _, tokens in places]}
    for name in names:
        if name not in _NEITHER:
            columns[name] = [line.get(name) for line in lines]
    return columns


def _store(directory: Path) -> str:
    """The hash of the run's token store; "" if run.json does not tell."""
    try:
        return str(read_json(directory / "run.json", inside=directory)["store"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _bands(recipe: Recipe, store: str, clock: _Clock) -> list[dict[str, Any]]:
    """Bands in which a metric is expected, from the reference curves of such runs, up to this run's last step."""
    bands = []
    for reference in references_of(recipe, store):
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


def _band(metric: str, label: str, steps: list[int], bounds: list[Bounds], clock: _Clock) -> dict[str, Any]:
    places = [clock.at(step) for step in steps]
    columns = {"step": steps, "hours": [hours for hours, _ in places], "tokens": [tokens for _, tokens in places]}
    low, high = [bound.low for bound in bounds], [bound.high for bound in bounds]
    return {"metric": metric, "label": label, **columns, "low": low, "high": high}


def _thinned(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Curves of at most MOST_POINTS points, each the mean of its neighbours."""
    count = len(columns["step"])
    width = math.ceil(count / MOST_POINTS)
    if width <= 1:
        return columns

    def mean(column: list[Any]) -> float | None:
        numbers = [value for value in column if value is not None]
        return sum(numbers) / len(numbers) if numbers else None

    return {name: [mean(column[i : i + width]) for i in range(0, count, width)] for name, column in columns.items()}


def _summary(recipe: Recipe, read: Lines, clock: _Clock, cluster: Cluster | None) -> list[list[str]]:
    """Names and values for people, the most important first."""
    total, steps = recipe.total_steps, read.steps
    unreadable = [["unreadable lines", f"{read.unreadable:,} of metrics.jsonl"]] if read.unreadable else []
    if not steps:
        return [["step", f"0 of {total:,}"], *unreadable]
    last, (hours, tokens) = steps[-1], clock.end
    left_s = seconds_left(recipe, steps, last["step"], total)
    rows = [["step", f"{last['step']:,} of {total:,}"], ["loss", _figure(last["loss"])]]
    for line in reversed(read.lines):
        if _is_evaluation(line):
            rows += [
                [name.replace("_", " "), _figure(figure)]
                for name, figure in line.items()
                if name.startswith((_HELD_OUT, _PROBE))
            ]
            break
    rows += [["hours of training", f"{hours:,.2f}"]]
    if left_s:
        rows.append(["hours left", f"{left_s / 3600:,.2f}"])
    if last["step"] < total and last.get("time") is not None:
        rows.append(["last line", f"{_span(time.time() - last['time'])} ago"])
    rows.append(["tokens", f"{tokens:,.0f}"])
    for name, metric, text in (
        ("tokens a second", "tokens_per_s", "{:,.0f}"),
        (
            "share of the peak",
            "flops_share",
            "{:.1%}" + ", which was measured too low" * ((last.get("flops_share") or 0) > 1),
        ),
        ("skipped steps", "skipped_steps", "{:,}"),
    ):
        if last.get(metric) is not None:
            rows.append([name, text.format(last[metric])])
    if last.get("memory_bytes") is not None:
        rows.append(["memory of rank 0", f"{last['memory_bytes'] / 2**30:,.2f} GiB"])
    rows += [["pauses", f"{len(clock.pauses)}, {_span(sum(pause['seconds'] for pause in clock.pauses))}"], *unreadable]
    if cluster is not None:
        ends = [("so far", hours)] + ([] if left_s is None else [("at the end", hours + left_s / 3600)])
        for words, when_h in ends:
            costs = bill(cluster.costs, when_h / 24, cluster.ranks)
            rows.append([f"device-hours {words}", f"{costs.device_hours:,.1f}"])
            if costs.price is not None:
                rows.append([f"cost {words}", f"{costs.price:,.2f} {cluster.costs.currency}".strip()])
            if costs.kwh is not None:
                rows.append([f"energy {words}", f"{costs.kwh:,.1f} kWh"])
    return rows


def _place(directory: Path) -> list[list[str]]:
    """State, ranks and host from the run's last sign of life, and the program's version from its newest checkpoint."""
    rows = []
    if (sign := read_sign(directory)) is not None:
        rows += [["state", sign.ended or sign.doing], ["ranks", str(sign.ranks)], ["host of rank 0", sign.host]]
    if (checkpoint := newest_checkpoint(directory)) is not None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            rows.append(["version", str(read_json(checkpoint / "training" / "state.json")["version"])])
    return rows


def _figure(figure: float | None) -> str:
    return "not finite" if figure is None else f"{figure:.4f}"


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _flat(table: dict[str, Any]) -> dict[str, str]:
    """Settings as `section.key`, phases as `phase.0.key`, in the recipe's order; values as TOML has them."""
    flat: dict[str, str] = {}
    for section, settings_table in table.items():
        phases = (
            {f"{section}.{i}": phase for i, phase in enumerate(settings_table)}
            if isinstance(settings_table, list)
            else None
        )
        for prefix, settings in (phases or {section: settings_table}).items():
            flat |= {f"{prefix}.{key}": json.dumps(value) for key, value in settings.items()}
    return flat
