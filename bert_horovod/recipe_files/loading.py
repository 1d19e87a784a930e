"""Recipes as TOML files: read, overridden, checked, compared, written; those that come along; fragments of `tune`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from bert_horovod.errors import UserError
from bert_horovod.exchange.methods import METHODS
from bert_horovod.model.architectures.families import MODELS
from bert_horovod.optimizers.rules import RULES
from bert_horovod.optimizers.schedule import steps_without_rate
from bert_horovod.recipe.checking import check_combinations, idle_settings, refuse_idle
from bert_horovod.recipe.fields import (
    Numbers,
    NumbersTable,
    OneOf,
    flat_table,
    parse_toml,
    read_toml,
    sections_from_table,
)
from bert_horovod.recipe.finetuning_heads import HEADS
from bert_horovod.recipe.methods_found import Methods, is_experiment
from bert_horovod.recipe.sections import WHAT_SECTIONS, Model, Recipe
from bert_horovod.recipe.settings import PRETRAINING, Execution, Phase
from bert_horovod.recipe_files.earlier import MOVED, REMOVED, as_now, name_now
from bert_horovod.storage.reading import read_text
from bert_horovod.wording import did_you_mean

# The dataclass of each section.
SECTIONS: dict[str, Any] = {
    section.name: section.default_factory for section in dataclasses.fields(Recipe) if section.name != "notes"
} | {
    "model": OneOf("architecture", MODELS),
    "finetuning": OneOf("head", HEADS),
    "optimizer": OneOf("name", RULES),
    "exchange": OneOf("method", METHODS),
    "phase": [Phase],
}


def load_recipe(path: str | Path, overrides: list[str] | tuple[str, ...] = (), start: Model | None = None) -> Recipe:
    """Read a TOML recipe of pre-training, apply `key.path=value` overrides, check everything; raises ReportedError.

    A setting that nothing reads is refused. But what an override made idle is said in Recipe.notes, and so is what the
    recipe.toml of a run has, because it lists all settings.

    Args:
        path: a file, or the name of a recipe that comes with the program, as in "bert-base".
        overrides: as typed.
        start: the model to start from, which has the settings of [model] that recipe and overrides leave out.
    """
    path = recipe_file(path)
    hint = "; `bert-horovod recipes` lists those that come with the program"
    table = as_now(read_toml(path, "the recipe", hint))
    overridden, left_out = _without_other_methods(as_now(_with_overrides(table, overrides)), overrides)
    if start is not None:
        ours, theirs = overridden.get("model", {}), _with_lists(dataclasses.asdict(start))
        if isinstance(ours, dict) and ours.get("architecture") in (None, theirs["architecture"]):
            overridden["model"] = theirs | ours
    try:
        recipe = recipe_from_table(overridden)
        refuse_idle(recipe, PRETRAINING, overridden_keys(overrides) | _idle_in_file(table))
        notes = (
            *(*left_out, *idle_settings(recipe, PRETRAINING).values(), *_without_effect(recipe)),
            *(*about_experiments(recipe), *dict.fromkeys((*RULES.problems, *METHODS.problems, *HEADS.problems))),
        )
        return dataclasses.replace(recipe, notes=notes)
    except UserError as error:
        raise UserError(f"the recipe {path}{' with --set' if overrides else ''}: {error}") from error


def _without_effect(recipe: Recipe) -> list[str]:
    """Sentences about settings whose values do hardly anything."""
    told = [
        f"phase.{i}.decay_power = {phase.decay_power:g}: the last {count:,} of {phase.steps:,} steps have the learning "
        "rate 0"
        for i, phase in enumerate(recipe.phase)
        if (count := steps_without_rate(phase))
    ]
    every, usual = recipe.execution.replay_steps, Execution().replay_steps
    if every > recipe.total_steps and every != usual:
        told.append(
            f"execution.replay_steps = {every:,}: the run has {recipe.total_steps:,} steps, so gradients are checked "
            "before checkpoints alone"
        )
    return told


def recipe_from_table(table: dict[str, Any], overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Build a checked recipe from parsed TOML, with `key.path=value` overrides.

    Raises UserError that lists every wrong key with its value and the allowed values.
    """
    table = as_now(_with_overrides(table, overrides))
    table = {name: {} for name, kind in SECTIONS.items() if isinstance(kind, OneOf)} | table
    recipe = Recipe(**sections_from_table(SECTIONS, table, REMOVED))
    check_combinations(recipe)
    return recipe


def load_recorded(path: Path) -> Recipe:
    """The recipe.toml of a run, to be shown: as recipe_of_record; raises ReportedError."""
    table = read_toml(path, "the recipe")
    try:
        return recipe_of_record(table)
    except UserError as error:
        raise UserError(f"the recipe {path}: {error}") from error


def recipe_of_record(table: dict[str, Any]) -> Recipe:
    """The recipe that a run has recorded, of which a method that is not known here is known by its settings alone.

    Such a recipe can be shown and compared, and no run can go on with it. Raises UserError.
    """
    unknown, table = {}, as_now(table)
    for name, one_of in SECTIONS.items():
        if isinstance(one_of, OneOf) and isinstance(one_of.kinds, Methods) and isinstance(table.get(name), dict):
            method = table[name].get(one_of.key)
            if isinstance(method, str) and method not in one_of.kinds:
                unknown[name] = one_of.kinds.stand_in(table[name])
    if not unknown:
        return recipe_from_table(table)
    known = {name: section for name, section in table.items() if name not in unknown}
    return Recipe(**sections_from_table(SECTIONS, known, REMOVED), **unknown)


def about_experiments(recipe: Recipe) -> list[str]:
    """A sentence about each setting of the recipe that names an experiment: measured, without having paid."""
    chosen = {
        "optimizer.name": (recipe.optimizer.name, is_experiment(type(recipe.optimizer))),
        "exchange.method": (recipe.exchange.method, is_experiment(type(recipe.exchange))),
        "finetuning.head": (recipe.finetuning.head, is_experiment(type(recipe.finetuning))),
        "optimizer.clipping": (recipe.optimizer.clipping, recipe.optimizer.clipping == "bucket"),
    }
    chosen |= {f"phase.{i}.grow": (phase.grow, phase.grow == "top") for i, phase in enumerate(recipe.phase)}
    return [
        f"{key} = {value!r} is an experiment, which did not pay where it was measured: docs/methods.md"
        for key, (value, is_one) in chosen.items()
        if is_one
    ]


def overridden_keys(overrides: Sequence[str]) -> set[str]:
    """The keys of `key.path=value` overrides, and those that they mean today (MOVED)."""
    keys = {override.partition("=")[0].strip() for override in overrides}
    moved = [key.removeprefix("objective.") for key in keys if key.removeprefix("objective.") in MOVED]
    return keys | {f"finetuning.{name}" for key in moved for name in (name_now(key), *["head"] * bool(MOVED[key][1]))}


def recipe_to_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as nested dicts and lists, every setting present; the inverse of recipe_from_table."""
    table = _with_lists(dataclasses.asdict(recipe))
    del table["notes"]
    return table


def recipe_to_toml(recipe: Recipe) -> str:
    """The recipe as TOML text, every setting present."""
    return tomli_w.dumps(recipe_to_table(recipe))


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Settings that decide the result (WHAT_SECTIONS) and differ between two recipes, as `key: old -> new`.

    With optimizer.clipping = "bucket" these include micro_batch and bucket_bytes of [execution].
    """
    tables = map(recipe_to_table, (old, new))
    a, b = (flat_table({section: table[section] for section in WHAT_SECTIONS}) for table in tables)
    # Other methods have other settings: the line of the method's name says it.
    lines = [f"{key}: {a[key]!r} -> {b[key]!r}" for key in a if key in b and a[key] != b[key]]
    if len(old.phase) != len(new.phase):
        lines.append(f"phase: {len(old.phase)} phases -> {len(new.phase)}")
    if old.optimizer.clipping == new.optimizer.clipping == "bucket":
        for name in ("micro_batch", "bucket_bytes"):
            before, after = getattr(old.execution, name), getattr(new.execution, name)
            if before != after:
                lines.append(f"execution.{name}: {before!r} -> {after!r}, by which optimizer.clipping = 'bucket' clips")
    return lines


def _idle_in_file(table: dict[str, Any]) -> set[str]:
    """The settings of a recipe that nothing reads, as its author left it; none in a file that lists all settings."""
    if set(WHAT_SECTIONS) <= set(table) and {entry.name for entry in dataclasses.fields(Model)} <= set(table["model"]):
        return set()  # a run wrote it
    try:
        return set(idle_settings(recipe_from_table(table), PRETRAINING))
    except UserError:  # it needs the overrides
        return set()


def _without_other_methods(table: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The table without what it says of another method than that of an override, and sentences about these settings."""
    keys, left_out = overridden_keys(overrides), []
    for name, one_of in SECTIONS.items():
        if not isinstance(one_of, OneOf) or f"{name}.{one_of.key}" not in keys or not isinstance(table[name], dict):
            continue
        chosen = table[name].get(one_of.key, next(iter(one_of.kinds)))
        one_of.kinds.get(str(chosen))  # a method of another package is read when it is asked for
        kinds = {kind: {entry.name for entry in dataclasses.fields(each)} for kind, each in one_of.kinds.items()}
        of_others = set().union(*kinds.values()) - kinds.get(str(chosen), set()) - {key.split(".")[1] for key in keys}
        left_out += [
            f"{name}.{key} = {value!r} of the recipe is left out: {name}.{one_of.key} = {chosen!r} has no such setting"
            for key, value in table[name].items()
            if key in of_others
        ]
        table[name] = {key: value for key, value in table[name].items() if key not in of_others}
    return table, left_out


def _with_lists(value: Any) -> Any:
    """A table with lists and tables in place of its tuples, as TOML has them."""
    if isinstance(value, Numbers):
        return NumbersTable(value)
    if isinstance(value, dict):
        return {key: _with_lists(content) for key, content in value.items()}
    return [_with_lists(content) for content in value] if isinstance(value, tuple) else value


def _with_overrides(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    table = dict(table)
    for override in overrides:
        _override(table, override)
    return table


def _override(table: dict[str, Any], override: str) -> None:
    """Set one value of the table; its sections are replaced, because they may be the caller's."""
    key, separator, text = override.partition("=")
    path = key.strip().split(".")
    override = override if len(override) < 200 else f"{override[:200]}..."
    if not separator or len(path) not in (2, 3) or not all(path):
        raise UserError(f"--set {override}: expected section.key=value, as in --set execution.micro_batch=8")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()
    if path[0] == "phase":
        phases = table.get("phase", [])
        if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
            raise UserError(f"--set {override}: phase in the recipe: expected one or more [[phase]] tables")
        if len(path) != 3 or path[1] not in map(str, range(len(phases))):
            raise UserError(
                f"--set {override}: expected phase.N.key=value with N from 0, as in --set phase.0.steps=100; "
                f"the recipe has {len(phases)} [[phase]] table(s)"
            )
        number = int(path[1])
        table["phase"] = [*phases[:number], phases[number] | {path[2]: value}, *phases[number + 1 :]]
        return
    section = table.get(path[0], {})
    if len(path) != 2 or not isinstance(section, dict):
        raise UserError(f"--set {override}: expected section.key=value, as in --set execution.micro_batch=8")
    table[path[0]] = section | {path[1]: value}


# Which recipe to take, with its purpose; the others reproduce a published training, or serve a purpose of their own.
TAKE = {
    "quickstart": "to see a run in minutes, without a GPU",
    "bert-mini-fast": "for a first model of a small corpus, on CPU cores",
    "bert-base-2026": "for a BERT-base of one's own; bert-base where it must be the published training",
    "slow-link": "for the same on 1 Gb/s Ethernet",
    "modernbert-base": "for long texts, where all that reads the model knows ModernBERT",
    "domain": "to go on from a published checkpoint on a domain's text",
}
_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_recipes() -> dict[str, Path]:
    """The recipes' files by name, as in "bert-base"."""
    installed, clone = _PACKAGE / "recipes", _PACKAGE.parent / "run" / "recipes"
    files = sorted((installed if installed.is_dir() else clone).glob("*.toml"))
    if not files:
        raise UserError(f"found no recipes in {installed} and none in {clone}; install the program again")
    return {path.stem: path for path in files}


def shipped_recipe(name: str) -> Path:
    """The file of the recipe of this name, with or without .toml; raises UserError if there is none."""
    recipes = shipped_recipes()
    path = recipes.get(name.removesuffix(".toml"))
    if path is None:
        raise UserError(
            f"no recipe {name[:200]}; {did_you_mean(name, recipes)}expected a file, or one of {', '.join(recipes)}"
        )
    return path


def recipe_file(name: str | Path) -> Path:
    """The file that --recipe means: one of this path, else the shipped recipe of this name, with or without .toml.

    Raises UserError for a name, without a directory or a suffix, that is neither.
    """
    path = Path(name)
    if path.name != str(name) or path.is_file():
        return path
    if path.suffix == ".toml":
        return shipped_recipes().get(path.stem, path)
    return shipped_recipe(str(name))


def what_for(path: Path) -> str:
    """The purpose of a recipe: the first line of its file, if that is a comment; else ""."""
    first = read_text(path).partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def tuned_overrides(path: Path | None) -> list[str]:
    """The settings of a fragment as `execution.key=value`, for --set; an empty list if path is None.

    Raises UserError, which names the key, if the file holds anything but settings of [execution].
    """
    if path is None:
        return []
    table = as_now(read_toml(path, "--tuned"))
    try:
        sections_from_table({"execution": Execution}, table, REMOVED)
    except UserError as error:
        raise UserError(
            f"--tuned {path}: {error}. Expected settings of [execution] alone, as bert-horovod tune writes them"
        ) from error
    return execution_overrides(table.get("execution", {}))


def execution_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings of [execution] as `execution.key=value`, for --set."""
    return [f"execution.{key}={_value(value)}" for key, value in settings.items()]


def fragment(settings: Mapping[str, Any], comments: list[str]) -> str:
    """The text of a fragment: comments, one a line, and settings of [execution]."""
    return "".join(f"# {line}\n" for line in comments) + tomli_w.dumps({"execution": dict(settings)})


def _value(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"value": value}).partition(" = ")[2].strip()
