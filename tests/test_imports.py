"""The house's order: who may import whom, as docs/architecture.md has it."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.horovod_runs import PROJECT

PACKAGE = PROJECT / "bert_horovod"
FILES = sorted(PACKAGE.rglob("*.py"))
# From the top; rooms of a line may import each other.
ORDER = (
    ("__main__", "commands"),
    ("finetuning", "reporting", "measuring", "cluster"),
    ("training",),
    ("inference",),
    ("runs", "interchange"),
    ("recipe_files",),
    ("exchange", "tasks"),
    ("costs",),
    ("batches", "model", "optimizers"),
    ("corpus",),
    ("collectives",),
    ("recipe",),
    ("storage", "runtime"),
    ("errors", "wording"),
)
FLOOR = {room: number for number, rooms in enumerate(ORDER) for room in rooms}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(name: str) -> str | None:
    """The room of a module of the package."""
    parts = name.split(".")
    return parts[1] if parts[0] == "bert_horovod" and parts[1] in FLOOR else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_from_its_own_floor_and_below_and_horovod_has_one_room(path):
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = imported(path)
    upwards = {name for name in names if room(name) and mine in FLOOR and FLOOR[room(name)] < FLOOR[mine]}
    assert not upwards
    if mine != "collectives":
        assert not {name for name in names if name.split(".")[0] == "horovod"}


def test_every_room_has_a_floor():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == set(FLOOR)


def test_no_files_import_each_other_in_a_circle():
    files = {".".join(path.relative_to(PROJECT).with_suffix("").parts): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}

    def module(name: str) -> str | None:
        return next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)

    imports = {own: {module(name) for name in imported(path)} - {None, own} for own, path in modules.items()}
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def test_no_two_files_have_one_name():
    counts = Counter(path.name for path in FILES if path.name not in ("__init__.py", "base.py"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_page_about_the_house_names_its_rooms_and_files_that_are_there():
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    rooms = [name for cell in table for name in re.findall(r"`(\w+)/`", cell)]
    assert rooms == [name for floor in ORDER[:-1] for name in floor if name != "__main__"]
    for named in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (PACKAGE / named).is_file() or (PROJECT / named).is_file(), named
