"""The ladder of lab/ladder.toml: what each row trains, what was found, and what is taken.

A line of lab/curves/ladder.jsonl is a run, or a pilot: how much longer a row's step takes than the best's. All that
is decided follows from these lines, so that a ladder that was broken off goes on where it was.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from bert_horovod.recipe.fields import read_toml
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from lab.curve_recipes import KEPT, LAB, key_of, recipe_path
from lab.kept import add_line, by_key

FILE = KEPT / "ladder.jsonl"
BASE = "the recipe"  # the name of what the first row is compared with
COLUMNS = {
    "loss": ("held-out loss", "{:.4f}".format),
    "spread": ("spread of seeds", "{:.4f}".format),
    "gain": ("gain, mean", "{:+.4f}".format),
    "least": ("least gain", "{:+.4f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "steps": ("steps", "{:,.0f}".format),
    "processor_s": ("processor s", "{:.0f}".format),
    "taken": ("taken", "{}".format),
}
Settings = dict[str, str]  # value by key, both as --set takes them


@dataclass(frozen=True)
class Row:
    """A change; lab/ladder.toml says what each field means."""

    name: str
    set: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    timed: bool = False
    timed_as: tuple[str, ...] = ()
    batch: int = 0
    root: bool = False
    mean: int = 0
    rival: bool = False


@dataclass(frozen=True)
class After:
    """What is trained when all rows are decided; lab/ladder.toml says what each field means."""

    name: str
    of: str
    seeds: tuple[int, ...]
    set: tuple[str, ...] = ()
    rate: float = 1.0
    fresh: bool = False


class Ladder(NamedTuple):
    """The table of rows."""

    recipe: str  # see recipe_path
    seeds: tuple[int, ...]
    gain: float  # nats
    common: Settings
    rows: tuple[Row, ...]
    after: tuple[After, ...]


class Run(NamedTuple):
    """A seed of a row."""

    row: str
    seed: int
    settings: Settings  # without the common ones
    recipe: Recipe
    key: str
    mean: int = 0
    fresh: bool = False  # on the store that holds out other text


class Pilot(NamedTuple):
    """What must be timed before a row can be trained: a step of the row beside one of the best."""

    row: str
    settings: Settings
    best: Settings
    key: str


class Verdict(NamedTuple):
    """A row whose seeds are all trained."""

    row: str
    losses: list[float]  # held out, by seed
    accuracies: list[float]
    gains: list[float]  # of the best's loss less the row's, by seed
    processor_s: float  # mean of a run
    steps: int
    taken: bool


def read_ladder() -> Ladder:
    """The table of lab/ladder.toml."""
    table = read_toml(LAB / "ladder.toml", "the ladder")
    rows, after = (
        tuple(kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}) for row in table[name])
        for name, kind in (("row", Row), ("after", After))
    )
    return Ladder(table["recipe"], tuple(table["seeds"]), table["gain"], _split(table["set"]), rows, after)


def kept() -> dict[str, dict[str, Any]]:
    """The lines that are kept, by key."""
    return by_key(FILE)


def keep(line: dict[str, Any]) -> None:
    """Add a line."""
    add_line(FILE, line)


def walk(
    ladder: Ladder, lines: dict[str, dict[str, Any]], store_hash: str, fresh_hash: str | None = None
) -> Iterator[Verdict | list[Run | Pilot]]:
    """The verdicts of all rows in turn, up to the first that lacks something: what it lacks comes last.

    `fresh_hash`: of the store that holds out other text; None: there is none, and what needs it is left out.
    """
    best, best_run = {}, Row(BASE)
    before: Verdict | None = None
    for row in (Row(BASE), *ladder.rows):
        settings = _changed(ladder, best, row)
        if row.timed:
            key = f"pilot {_run(ladder, row, settings, ladder.seeds[0], store_hash).key}"
            if key not in lines:
                yield [Pilot(row.name, settings | _split(row.timed_as), best, key)]
                return
            steps = _recipe(ladder, best).phase[0].steps
            settings["phase.0.steps"] = str(round(steps / lines[key]["ratio"]))
        runs = [_run(ladder, row if row.mean else best_run, settings, seed, store_hash) for seed in ladder.seeds]
        runs = [run._replace(row=row.name) for run in runs]
        missing = [run for run in runs if run.key not in lines]
        if missing:
            yield missing
            return
        losses = [lines[run.key]["loss"] for run in runs]
        gains = [a - b for a, b in zip(before.losses, losses, strict=True)] if before else [0.0] * len(losses)
        taken = not row.rival and (before is None or (min(gains) > 0 and statistics.fmean(gains) >= ladder.gain))
        verdict = _verdict(runs, lines, gains, taken)
        yield verdict
        if taken:
            best, before = settings, verdict
            best_run = row if row.mean else best_run
    for after in ladder.after:
        if after.fresh and not fresh_hash:
            continue
        settings = (best if after.of == "winner" else {}) | _split(after.set)
        rate = _recipe(ladder, settings).phase[0].learning_rate
        settings["phase.0.learning_rate"] = f"{after.rate * rate:.4g}"
        mean = best_run if after.of == "winner" else Row(BASE)
        runs = [_run(ladder, mean, settings, seed, fresh_hash if after.fresh else store_hash) for seed in after.seeds]
        runs = [run._replace(row=after.name, fresh=after.fresh) for run in runs]
        if missing := [run for run in runs if run.key not in lines]:
            yield missing
            return
        yield _verdict(runs, lines, [], False)


def _verdict(runs: list[Run], lines: dict[str, dict[str, Any]], gains: list[float], taken: bool) -> Verdict:
    found = [lines[run.key] for run in runs]
    return Verdict(
        runs[0].row,
        [line["loss"] for line in found],
        [line["accuracy"] for line in found],
        gains,
        statistics.fmean(line["processor_s"] for line in found),
        runs[0].recipe.phase[0].steps,
        taken,
    )


def _changed(ladder: Ladder, best: Settings, row: Row) -> Settings:
    """The settings of a row."""
    settings = {key: value for key, value in best.items() if key not in row.unset} | _split(row.set)
    if row.batch:
        phase = _recipe(ladder, best).phase[0]
        share = row.batch / phase.global_batch
        settings["phase.0.global_batch"] = str(row.batch)
        settings["phase.0.steps"] = str(round(phase.steps / share))
        if row.root:
            settings["phase.0.learning_rate"] = f"{phase.learning_rate * math.sqrt(share):.4g}"
    return settings


def _run(ladder: Ladder, row: Row, settings: Settings, seed: int, store_hash: str) -> Run:
    settings = settings | {"data.seed": str(seed)}
    recipe = _recipe(ladder, settings)
    key = key_of(recipe, store_hash, ranks=1) + (f" mean {row.mean}" if row.mean else "")
    return Run(row.name, seed, settings, recipe, key, row.mean)


def _recipe(ladder: Ladder, settings: Settings) -> Recipe:
    return load_recipe(recipe_path(ladder.recipe), overrides(ladder, settings))


def overrides(ladder: Ladder, settings: Settings) -> list[str]:
    """All that is set in the ladder's recipe for a run, as --set takes it."""
    return [f"{key}={value}" for key, value in (ladder.common | settings).items()]


def _split(settings: Iterable[str]) -> Settings:
    return dict(setting.split("=", 1) for setting in settings)


def shown(verdict: Verdict) -> dict[str, Any]:
    """A row of the table."""
    finite = math.inf not in verdict.losses  # else a seed diverged
    return {
        "loss": statistics.fmean(verdict.losses),
        "spread": statistics.stdev(verdict.losses) if len(verdict.losses) > 1 and finite else None,
        "gain": statistics.fmean(verdict.gains) if verdict.gains else None,
        "least": min(verdict.gains, default=None),
        "accuracy": statistics.fmean(verdict.accuracies),
        "steps": verdict.steps,
        "processor_s": verdict.processor_s,
        "taken": "yes" if verdict.taken else "",
    }
