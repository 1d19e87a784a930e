"""The figures of a run for people, those that are tiles of the page and the rest, and how far it was at each step."""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.costs.prices import Bill, Prices, bill
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.run_status import seconds_left, state_by_sign
from bert_horovod.runs.checkpoint import paths
from bert_horovod.runs.metrics_lines import EVALUATIONS, Log
from bert_horovod.runs.mirror import lag_of
from bert_horovod.runs.sessions import Spent
from bert_horovod.runs.status_files import Sign
from bert_horovod.storage.reading import read_json
from bert_horovod.wording import duration, gibibytes

_ENDINGS = {"unknown": "", "dead": "killed", "silent": "no sign of life"}  # of states of run_status
PAUSE_S = 60  # a pause: the time between two lines exceeds that of their steps by more than this
AXES = ("hours", "tokens", "bytes")


class RunClock:
    """Hours, tokens and bytes at each step, and the pauses, which do not count.

    They are computed from the columns of all lines about training steps, oldest first: float64 by metric, NaN: unknown.
    """

    def __init__(self, columns: Mapping[str, Sequence[float]]) -> None:
        def column(name: str) -> Any:
            count = len(columns.get("step", ()))
            return np.asarray(columns[name]) if name in columns else np.full(count, np.nan)

        steps = column("step")
        done = np.diff(steps, prepend=0)
        seconds = column("step_s") * done
        tokens, sent = (np.nan_to_num(column(name)) for name in ("tokens_per_s", "wire_bytes"))
        per_line = (seconds / 3600, tokens * seconds, sent * done)
        self._steps = np.concatenate([[0], steps])
        self._at = [np.concatenate([[0.0], np.cumsum(each)]) for each in per_line]
        gaps = np.diff(column("time"), prepend=np.nan) - seconds  # NaN, where a time is not known, is no pause
        self.pauses = [
            {"step": int(steps[i]), "hours": float(self._at[0][i]), "seconds": float(gaps[i])}
            for i in np.flatnonzero(gaps > PAUSE_S)
        ]

    def columns(self, steps: Any) -> dict[str, list[Any]]:
        """By the name of each axis its values at the steps [n], interpolated between the lines around each step."""
        at = [np.interp(steps, self._steps, axis).tolist() for axis in self._at]
        return {"step": [int(step) for step in steps]} | dict(zip(AXES, at, strict=True))

    @property
    def last_step(self) -> int:
        """The step of the last line; 0 if there is none."""
        return int(self._steps[-1])

    @property
    def end(self) -> dict[str, float]:
        """By the name of each axis its value at the last line."""
        return {name: float(axis[-1]) for name, axis in zip(AXES, self._at, strict=True)}


class Tile(NamedTuple):
    """A figure in large print."""

    label: str
    value: str
    note: str = ""


def newest_evaluations(log: Log) -> dict[str, float | None]:
    """The newest value of each metric of an evaluation; None: not finite."""
    newest: dict[str, float | None] = {}
    for line in log.events:
        newest |= {name: value for name, value in line.items() if name.startswith(EVALUATIONS)}
    return newest


class Costs(NamedTuple):
    """What the costs of a run are computed from, as far as it is known."""

    prices: Prices | None
    taken: Spent | None  # None: the run's starts were not recorded; then all of its hours were on as many ranks:
    ranks: int | None

    def bill(self, clock: RunClock, more_s: float = 0.0) -> Bill | None:
        """The bill of the run so far, and of `more_s` further seconds; None: not known."""
        before = self.taken.bill(None).device_hours if self.taken else None
        if self.ranks is None:
            return None if before is None or more_s else bill(self.prices, before / 24, 1)
        before = clock.end["hours"] * self.ranks if before is None else before
        return bill(self.prices, (before + more_s / 3600 * self.ranks) / 24, 1)


def tiles(recipe: Recipe, log: Log, clock: RunClock, costs: Costs, sign: Sign | None) -> list[Tile]:
    """The figures that a reader looks for first.

    Where the loss is a sum, the training loss is that of masked tokens, as the held-out one beside it.
    """
    ending = ending_of(sign, recipe)
    about_step = f"of {recipe.total_steps:,}; {ending}".removesuffix("; ")
    if not log.newest:
        return [Tile("step", "0", about_step)]
    last, end = log.newest[-1], clock.end
    several = last.get("mlm_loss") not in (None, last["loss"])
    name, label = ("mlm_loss", "training mlm loss") if several else ("loss", "training loss")
    found = [
        Tile("step", f"{last['step']:,}", about_step),
        Tile(label, _figure(last[name], ".3f"), f"{_figure(log.first.get(name), '.2f')} at first"),
    ]
    found += _evaluation_tiles(newest_evaluations(log))
    left_s = _seconds_left(recipe, log, sign)
    found += [
        Tile("training time", duration(3600 * end["hours"]), f"{duration(left_s)} left" if left_s else ""),
        Tile("tokens", _short(end["tokens"]), f"{last.get('tokens_per_s') or 0:,.0f} a second"),
    ]
    if end["bytes"]:
        found.append(Tile("sent by a rank", f"{_short(end['bytes'])}B"))
    so_far = costs.bill(clock)
    if costs.prices is not None and so_far is not None and so_far.price is not None:
        found.append(Tile("cost so far", f"{so_far.price:,.2f} {costs.prices.currency}".strip()))
    return found


def _evaluation_tiles(newest: dict[str, float | None]) -> list[Tile]:
    """A tile for each metric of evaluations; an accuracy is the note of its loss."""
    found = []
    for name, value in newest.items():
        metric, _, store = name.partition(".")  # of one among several, as held_out_mlm_loss.own
        label = metric.replace("_", " ").replace("held out", "held-out") + f", {store}" * bool(store)
        of_store = name.removeprefix(metric)
        accuracy = newest.get(f"{metric.removesuffix('loss')}accuracy{of_store}") if metric.endswith("loss") else None
        if metric.endswith("accuracy") and f"{metric.removesuffix('accuracy')}loss{of_store}" in newest:
            continue
        form = ".3f" if metric.endswith("loss") else ".1%" if metric.endswith("accuracy") else ".4g"
        found.append(Tile(label, _figure(value, form), "" if accuracy is None else f"{accuracy:.1%} right"))
    return found


def figures(
    directory: Path, recipe: Recipe, log: Log, clock: RunClock, costs: Costs, sign: Sign | None
) -> list[list[str]]:
    """Names and values of all else, for the part of the page about machines."""
    unreadable = [["unreadable lines", f"{log.unreadable:,} of metrics.jsonl"]] if log.unreadable else []
    mirror = [["mirror", lag]] if (lag := lag_of(directory)) else []
    place = [*mirror, *_place(directory, sign)]
    if not log.newest:
        return [*unreadable, *place]
    last, hours = log.newest[-1], clock.end["hours"]
    rows = [["hours of training", f"{hours:,.2f}"]]
    left_s = _seconds_left(recipe, log, sign)
    if left_s:
        rows.append(["hours left", f"{left_s / 3600:,.2f}"])
    if last["step"] < recipe.total_steps and last.get("time") is not None:
        rows.append(["last line", f"{duration(time.time() - last['time'])} ago"])
    rows.append(["tokens", f"{clock.end['tokens']:,.0f}"])
    too_low = ", which was measured too low" * ((last.get("flops_share") or 0) > 1)
    for name, metric, text in (
        ("share of the peak", "flops_share", "{:.1%}" + too_low),
        ("skipped steps", "skipped_steps", "{:,}"),
    ):
        if last.get(metric) is not None:
            rows.append([name, text.format(last[metric])])
    if spread := _spread(log):
        rows.append(["spread over ranks", spread])
    if last.get("memory_bytes") is not None:
        rows.append(["memory of rank 0", gibibytes(last["memory_bytes"])])
    rows += [
        ["pauses", f"{len(clock.pauses)}, {duration(sum(pause['seconds'] for pause in clock.pauses))}"],
        *unreadable,
    ]
    rows += costs.taken.lines() if costs.taken else []
    for words, more_s in [("so far", 0.0)] + ([] if left_s is None else [("at the end", left_s)]):
        known = costs.bill(clock, more_s)
        if known is None or costs.prices is None:
            continue
        if more_s or costs.taken is None:
            rows.append([f"device-hours {words}", f"{known.device_hours:,.1f}"])
        if known.price is not None:
            rows.append([f"cost {words}", f"{known.price:,.2f} {costs.prices.currency}".strip()])
        if known.kwh is not None:
            rows.append([f"energy {words}", f"{known.kwh:,.1f} kWh"])
    return [*rows, *place]


def _spread(log: Log) -> str:
    """How far the slowest rank's computing is above the ranks' median, in the mean of timed steps; "" if none is."""
    median, largest, ranks = (
        np.asarray(log.columns.get(name, ())) for name in ("compute_s", "slowest_compute_s", "slowest_rank")
    )
    if len({len(median), len(largest), len(ranks)}) > 1:
        return ""
    timed = (median > 0) & (largest >= median) & (ranks >= 0)
    if not timed.any():
        return ""
    rank, times = Counter(ranks[timed].tolist()).most_common(1)[0]
    above, often = (largest[timed] / median[timed] - 1).mean(), times / timed.sum()
    return f"the slowest computes {above:.1%} longer than the median; in {often:.0%} of steps it is rank {rank:.0f}"


def ending_of(sign: Sign | None, recipe: Recipe) -> str:
    """How the run ended, or what it does, by its last sign of life; "" if there is none."""
    state = state_by_sign(sign)
    if sign is not None and state == "running":
        return sign.doing
    if sign is not None and state == "finished" and sign.last_step < recipe.total_steps:
        return f"ended at {sign.last_step:,} as asked"  # by --max_steps
    return _ENDINGS.get(state, state)


def _seconds_left(recipe: Recipe, log: Log, sign: Sign | None) -> float | None:
    """Seconds until the last step of the run, or that it was asked for; None: it has ended, or no line tells."""
    if state_by_sign(sign) not in ("running", "unknown"):
        return None
    last_step = sign.last_step if sign else recipe.total_steps
    return seconds_left(recipe, log.newest, log.newest[-1]["step"], last_step)


def _place(directory: Path, sign: Sign | None) -> list[list[str]]:
    """Ranks and host from the run's last sign of life, and the program's version from its newest checkpoint."""
    rows = []
    if sign is not None:
        rows += [["ranks", str(sign.ranks)], ["host of rank 0", sign.host]]
    for checkpoint in paths(directory)[-1:]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            rows.append(["version", str(read_json(checkpoint / "training" / "state.json")["version"])])
    return rows


def _figure(figure: float | None, form: str) -> str:
    return "not finite" if figure is None else format(figure, form)


def _short(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "
