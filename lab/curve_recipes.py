"""The curves of lab/curves.toml by their names: what each trains, is compared with and is kept under."""

import dataclasses
import hashlib
import json
import re
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.recipe.fields import read_toml
from bert_horovod.recipe.sections import WHAT_SECTIONS, Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_table
from lab.kept import add_line, by_key

LAB = Path(__file__).resolve().parent
_RECIPES = LAB.parent / "run" / "recipes"
KEPT = LAB / "curves"
RANKS = 2  # of a curve whose group does not say
SEED = re.compile(r", seed \d+$")
_UNTIMED = re.compile(r", (seed|rate|longer|dense).*")  # what changes no step's seconds


def recipe_path(name: str) -> Path:
    """A recipe of the lab's own, else one that comes with the program."""
    return own if (own := LAB / name).is_file() else _RECIPES / name


class Curve(NamedTuple):
    """What is trained under a name."""

    name: str
    recipe_file: Path
    settings: tuple[str, ...]  # what is set in the recipe, as --set takes it
    begin: str  # of the names of curves that begin with trained parameters; "": with fresh ones
    baseline: str  # the curve whose last loss it is to reach: of the same first parameters and seed
    timed: str  # under which its step is timed: neither first parameters, seed, rate nor stages count
    results: Path  # the file that keeps it
    ranks: int
    seeds: int  # with so many it is trained

    @property
    def recipe(self) -> Recipe:
        """The recipe, settings applied."""
        return load_recipe(self.recipe_file, self.settings)


def _read(path: Path) -> dict[str, Curve]:
    table = read_toml(path, "the table of curves")
    curves = {}
    for group in table["group"]:
        begin, best = group.get("begin", ""), table["best"].get(group.get("best"), ())
        seeds = {"": ()} | {f", seed {i}": (f"data.seed={i}",) for i in range(2, group.get("seeds", 1) + 1)}
        named = product(group["curves"].items(), seeds.items())
        for name, own in [(name + which, (*own, *seed)) for (name, own), (which, seed) in named]:
            seed = SEED.search(name)
            curves[begin + name] = Curve(
                begin + name,
                recipe_path(group["recipe"]),
                (*table["common"], *best, *group.get("set", ()), *own),
                begin,
                begin + group["baseline"] + (seed[0] if seed else ""),
                group.get("timed") or _UNTIMED.sub("", name),
                KEPT / f"{group['results']}.jsonl",
                group.get("ranks", RANKS),
                len(seeds),
            )
    return curves


CURVES = _read(LAB / "curves.toml")  # in the order in which they are trained


def key_of(recipe: Recipe, store_hash: str, start_hash: str | None = None, ranks: int = RANKS) -> str:
    """What decides a curve: settings that are defaults do not count, so that new ones change no key.

    `start_hash` is of the parameters that a continued curve begins with.
    """
    settings, defaults = (
        recipe_to_table(each) for each in (recipe, recipe_from_table({"phase": [{}] * len(recipe.phase)}))
    )
    for section in ("model", "optimizer", "exchange"):  # its own settings too
        defaults[section] = dataclasses.asdict(type(getattr(recipe, section))()) | defaults[section]
    changed: dict[str, Any] = {}
    for section in WHAT_SECTIONS:
        pairs = zip(settings[section], defaults[section], strict=True) if section == "phase" else None
        pairs = pairs or [(settings[section], defaults[section])]
        changes = [{key: a[key] for key in sorted(a) if a[key] != b[key]} for a, b in pairs]
        if section != "finetuning" or any(changes):  # a section that kept lines do not know
            changed[section] = changes
    decided_by = [changed, store_hash, ranks, recipe.execution.evaluate_rows, *([start_hash] if start_hash else [])]
    text = json.dumps(decided_by, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def kept() -> dict[str, dict[str, Any]]:
    """The curves that were trained, by key."""
    files = sorted({curve.results for curve in CURVES.values()})
    return {key: curve for file in files for key, curve in by_key(file).items()}


def keep(curve: dict[str, Any]) -> None:
    """Add a curve that was trained to the file of its name's group."""
    KEPT.mkdir(exist_ok=True)
    add_line(CURVES[curve["name"]].results, curve)
