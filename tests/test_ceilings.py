"""How large the whole is, beside its ceilings: printed (pytest -s), not yet asserted."""

import dataclasses
import json
from collections.abc import Iterator

from bert_horovod.recipe.fields import OneOf
from bert_horovod.recipe.methods_found import is_experiment
from bert_horovod.recipe_files.loading import SECTIONS
from tests.docs.test_pages import WRITTEN, words
from tests.horovod_runs import PROJECT
from tests.test_imports import CORE_COMMANDS, CORE_LINES, closure, lines_of

# Who needs more takes something away, or raises a number in the same commit with the reason.
CEILINGS = {
    "settings of a recipe, experiments' own left out": 95,
    "flags": 125,
    "lines of the core": CORE_LINES,
    "lines of the package": 54_500,
    "lines of tests": 46_000,
    "lines of the lab": 5_700,
    "words of pages": 38_000,
}


def settings() -> Iterator[str]:
    """The settings of recipes; one of several methods is one."""
    for name, section in SECTIONS.items():
        kinds = (
            section.kinds.values()
            if isinstance(section, OneOf)
            else section
            if isinstance(section, list)
            else [section]
        )
        for kind in kinds:
            if not is_experiment(kind):
                yield from (f"{name}.{entry.name}" for entry in dataclasses.fields(kind))


def python_lines(folder: str) -> int:
    return lines_of(set((PROJECT / folder).rglob("*.py")))


def test_sizes_are_printed_beside_their_ceilings():
    flags = json.loads((PROJECT / "tests" / "golden" / "flags.json").read_text(encoding="utf-8"))
    sizes = (
        len(set(settings())),
        len({name for names in flags.values() for name in names if name.startswith("--")}),
        lines_of(closure(*CORE_COMMANDS)),
        *map(python_lines, ("bert_horovod", "tests", "lab")),
        words([*WRITTEN, PROJECT / "README.md"]),
    )
    for (name, ceiling), size in zip(CEILINGS.items(), sizes, strict=True):
        print(f"{name}: {size:,} of {ceiling:,}{' (above)' if size > ceiling else ''}")
        assert size > 0
