"""Finds settings that nothing reads: a value other than the usual one, where its condition (fields.ReadIf) fails."""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import ReadIf
from bert_horovod.recipe.sections import Recipe
from bert_horovod.storage.reading import shown


def idle_settings(recipe: Recipe, task: str, usual: Recipe | None = None) -> dict[str, str]:
    """The settings that nothing reads, as `section.key` or `phase.N.key`, each with a sentence that says why.

    Args:
        recipe: already checked.
        task: what is trained, as in ReadIf.tasks.
        usual: has the values that are no wish of anybody; None: the defaults.
    """
    found = {}
    for name, section, standard, alone in _sections(recipe, usual):
        for entry in dataclasses.fields(section):
            condition: ReadIf | None = entry.metadata.get("read_if")
            default = getattr(standard, entry.name, entry.default) if standard else entry.default
            value = getattr(section, entry.name)
            if condition is None or value == default:
                continue
            key = f"{name}.{entry.name}"
            expected = f"expected {shown(default)}"
            if condition.tasks and task not in condition.tasks:
                found[key] = f"{key} = {shown(value)}: {task} does not read it; {expected}"
            elif condition.holds and not condition.holds(alone):
                found[key] = f"{key} = {shown(value)}: it is read only with {condition.words}; {expected}, or that"
    return found


def refuse_idle(recipe: Recipe, task: str, wished: Collection[str], usual: Recipe | None = None) -> None:
    """Raise UserError if nothing reads one of the wished settings; arguments as in idle_settings."""
    problems = [why for key, why in idle_settings(recipe, task, usual).items() if key in wished]
    if problems:
        raise UserError("; ".join(problems))


def _sections(recipe: Recipe, usual: Recipe | None) -> Iterator[tuple[str, Any, Any, Recipe]]:
    """Each section and each phase with its name, what stands for it in `usual`, and the recipe, of this phase alone."""
    for field in dataclasses.fields(recipe):
        if field.name == "notes":
            continue
        section, standard = getattr(recipe, field.name), usual and getattr(usual, field.name)
        if isinstance(section, tuple):
            for number, phase in enumerate(section):
                same = standard[number] if standard and number < len(standard) else None
                yield f"{field.name}.{number}", phase, same, dataclasses.replace(recipe, phase=(phase,))
        else:
            yield field.name, section, standard, recipe
