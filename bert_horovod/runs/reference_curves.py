"""Loss curves of earlier runs of a recipe, to check whether a run's loss is normal.

Each file of references/ is about one recipe. It has a band of losses of several seeds for each window of steps, as
measured by lab/reference_curve.py, or marks: values at the end of training, of others or of a run of ours. A
file is used for a run that has the file's settings; a band is used only if all other settings of the run are defaults,
and, if the file names texts, for runs on one of these: a small text has a curve of its own.
data.seed, [numerics] and [execution] may differ: a number format with which the loss leaves the band is a fault to be
reported.

The mean of a run's losses over k steps of a window is normal within

    mean +- 4 sqrt(spread^2 (1 + 1 / seeds) + noise^2 (1 / k - 1 / window))

where mean is the mean of the seeds' means over the window, spread the standard deviation of these means (pooled over
neighbouring windows), and noise the standard deviation of single steps' losses within a window. If losses are normally
distributed, one window in 16,000 is outside by chance.
"""

import dataclasses
import json
from dataclasses import dataclass
from math import floor, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.batches.source import Dataset
from bert_horovod.recipe.fields import flat_table
from bert_horovod.recipe.sections import WHAT_SECTIONS, Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table
from bert_horovod.storage.reading import read_json

DIRECTORY = Path(__file__).with_name("references")
_DEVIATIONS = 4.0
_SEED = "data.seed"
_SECTIONS = tuple(section for section in WHAT_SECTIONS if section not in ("finetuning", "numerics"))


class Bounds(NamedTuple):
    """The limits of a normal loss, in nats."""

    low: float
    high: float


@dataclass(frozen=True)
class Mark:
    """A known value of a metric at the end of training."""

    metric: str
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Reference:
    """A file of references/."""

    name: str
    runs: str  # description of the runs and their data
    command: str
    settings: dict[str, Any]  # settings of the runs, by section.key
    seeds: int = 0  # 0: there is no band
    window: int = 1  # steps; window i holds steps from i * window + 1 to (i + 1) * window
    means: tuple[float, ...] = ()  # means of losses in nats, by window
    spreads: tuple[float, ...] = ()
    noises: tuple[float, ...] = ()
    marks: tuple[Mark, ...] = ()
    texts: tuple[str, ...] = ()  # Store.text_key of the token stores that the runs learned; (): any text

    def bounds(self, window: int, losses: int | None = None) -> Bounds | None:
        """The band for the mean of `losses` losses of a window (None: of all its steps); None if there is no band."""
        if not 0 <= window < len(self.means):
            return None
        chance = self.noises[window] ** 2 * (1 / (losses or self.window) - 1 / self.window)
        reach = _DEVIATIONS * sqrt(self.spreads[window] ** 2 * (1 + 1 / self.seeds) + chance)
        return Bounds(self.means[window] - reach, self.means[window] + reach)

    def at(self, step: int) -> Bounds:
        """The band for one step's loss, on a straight line through the middles of the two nearest windows."""
        if len(self.means) == 1:
            return self.bounds(0, 1)
        place = (step - (self.window + 1) / 2) / self.window
        before = min(max(floor(place), 0), len(self.means) - 2)
        ends = zip(self.bounds(before, 1), self.bounds(before + 1, 1), strict=True)
        return Bounds(*(here + (place - before) * (there - here) for here, there in ends))

    def judge(self, step: int, losses: list[float]) -> str | None:
        """A message if the losses of the window that ends with `step` are not normal; None if normal or unknown."""
        bounds = self.bounds((step - 1) // self.window, len(losses))
        if bounds is None or not losses:
            return None
        loss = sum(losses) / len(losses)
        if bounds.low <= loss <= bounds.high:
            return None
        advice = (
            "the learning rate and its warm-up, and the data (bert-horovod inspect shows rows)"
            if loss > bounds.high
            else "the data: repeated text, or text that is easier than the reference's"
        )
        return (
            f"at step {step} the loss is {loss:.2f}, and runs of this recipe are between {bounds.low:.2f} and "
            f"{bounds.high:.2f} ({self.runs}); look at {advice}"
        )


def references_of(recipe: Recipe, text_key: str, fresh: bool = True) -> list[Reference]:
    """The references for a recipe's runs on this text: at most one with a band, any number with marks.

    A band is for runs that began with `fresh` parameters alone.
    """
    return [
        each
        for each in references_of_settings(recipe)
        if (fresh or not each.means) and (not each.texts or text_key in each.texts)
    ]


def text_key_of(recipe: Recipe, dataset: Dataset) -> str:
    """The data's text_key if a reference is about the recipe on one text alone; else "": to make it may take long."""
    return dataset.text_key if any(each.texts for each in references_of_settings(recipe)) else ""


def references_of_settings(recipe: Recipe) -> list[Reference]:
    """The references for a recipe's runs, on whatever text."""
    settings = curve_settings(recipe)
    defaults = recipe_from_table({"phase": [{}] * len(recipe.phase)})
    of_methods = dataclasses.replace(
        defaults, model=type(recipe.model)(), optimizer=type(recipe.optimizer)(), exchange=type(recipe.exchange)()
    )
    usual = curve_settings(of_methods) | curve_settings(defaults)
    chosen = {key: value for key, value in settings.items() if value != usual[key]}
    references = [read_reference(path) for path in sorted(DIRECTORY.glob("*.json"))]
    return [
        reference
        for reference in references
        if reference.settings.items() <= settings.items()
        and (not reference.means or chosen.keys() <= reference.settings.keys())
    ]


def curve_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide a run's result, except data.seed and [numerics], by section.key; values are hashable."""
    table = recipe_to_table(recipe)
    settings = flat_table({section: table[section] for section in _SECTIONS})
    del settings[_SEED]
    return {key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in settings.items()}


def read_reference(path: Path) -> Reference:
    """Read a file of references/."""
    contents = read_json(path)
    contents["marks"] = tuple(Mark(**mark) for mark in contents.get("marks", ()))
    for name in ("means", "spreads", "noises", "texts"):
        contents[name] = tuple(contents.get(name, ()))
    return Reference(**contents)
