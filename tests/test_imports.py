"""The house's order: who may import whom, as docs/architecture.md has it."""

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.horovod_runs import PROJECT

PACKAGE = PROJECT / "bert_horovod"
FILES = sorted(PACKAGE.rglob("*.py"))
# From the top; rooms of a line do not import each other.
ORDER = (
    ("experiments",),
    ("__main__",),
    ("commands",),
    ("finetuning", "measuring", "cluster"),
    ("reporting",),
    ("training",),
    ("inference",),
    ("runs",),
    ("interchange",),
    ("recipe_files",),
    ("exchange", "tasks"),
    ("costs",),
    ("optimizers",),
    ("batches", "model"),
    ("corpus",),
    ("collectives",),
    ("recipe",),
    ("storage", "runtime"),
    ("errors", "wording"),
)
# What is needed to make a token store, train on it and evaluate; rooms outside: finetuning, measuring, reporting.
CORE_COMMANDS = ("evaluate", "prepare", "pretrain", "vocab")
CORE_LINES = 35_000  # at most
CORE = {
    *("batches", "collectives", "corpus", "costs", "errors", "exchange", "inference", "interchange", "model"),
    "optimizers",
    *("recipe", "recipe_files", "runs", "runtime", "storage", "tasks", "training", "wording"),
}
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
def test_a_room_imports_from_itself_and_the_floors_below_and_horovod_and_tensorflow_have_one_room(path):
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = imported(path)
    others = {name for name in names if room(name) not in (None, mine) and mine in FLOOR}
    assert not {name for name in others if FLOOR[room(name)] <= FLOOR[mine]}
    if mine != "collectives":
        assert not {name for name in names if name.split(".")[0] == "horovod"}
    if mine != "runtime":  # others: from bert_horovod.runtime import lazy_tensorflow as tf
        assert not {name for name in names if name.split(".")[0] == "tensorflow"}


def test_every_room_has_a_floor():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == set(FLOOR)


def imports_of_files() -> dict[Path, set[Path]]:
    """The package's files that each file imports, anywhere in it."""
    modules = {
        ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
    }

    def files(names: set[str]) -> set[Path]:
        return {modules[each] for name in names for each in (name, name.rpartition(".")[0]) if each in modules}

    return {path: files(imported(path)) - {path, PACKAGE / "__init__.py"} for path in FILES}


def test_no_files_import_each_other_in_a_circle():
    TopologicalSorter(imports_of_files()).prepare()  # raises CycleError with the circle


def closure(*commands: str) -> set[Path]:
    """The files of commands, and all that they import."""
    imports, inside = imports_of_files(), set()
    beyond = {PACKAGE / "commands" / f"{name}.py" for name in commands}
    while beyond:
        inside |= beyond
        beyond = set().union(*(imports[path] for path in beyond)) - inside
    return inside


def lines_of(paths: set[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_preparing_text_with_the_vocabulary_of_a_checkpoint_needs_no_exchange():
    inside = closure("prepare")
    rooms = {path.relative_to(PACKAGE).parts[0] for path in inside}
    assert "interchange" in rooms
    assert not rooms & {"exchange", "recipe_files", "training", "finetuning", "inference", "cluster"}
    assert lines_of(inside) < 20_000


def test_the_core_imports_nothing_beyond_its_border_and_is_no_larger_than_the_page_says():
    core = closure(*CORE_COMMANDS)
    parts = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in core}
    assert {path for path, names in parts.items() if names[0] not in CORE | {"commands", "cluster"}} == set()
    assert {names[0] for names in parts.values()} == CORE | {"commands", "cluster"}
    assert {names[1] for names in parts.values() if names[0] == "cluster" and names[1:]} <= {"__init__", "launching"}
    assert {names[1] for names in parts.values() if names[0] == "commands"} == {*CORE_COMMANDS, "shared", "__init__"}
    assert lines_of(core) <= CORE_LINES
    assert f"at most {CORE_LINES:,} lines" in (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_what_reads_recipes_and_trains_is_imported_without_tensorflow():
    code = (
        "import sys, bert_horovod.training.loop, bert_horovod.finetuning.probing; sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


def test_no_two_files_have_one_name():
    named = [path for path in FILES if path.name not in ("__init__.py", "base.py")]
    counts = Counter(path.name for path in named if path.parent.name != "bench")  # named as they are typed
    assert [name for name, count in counts.items() if count > 1] == []


# Names that several modules have on purpose: who calls them chooses the module by a name, or compares the two.
SHARED_NAMES = {
    "of a command": {"add_arguments", "run"},
    "of a program of its own": {"main"},
    "of an update rule": {"directions", "next_slots", "rates"},
    "of a probe while a run trains": {"hook"},
    "of an architecture": {"embed", "encode", "layer", "surroundings", "text_features"},
    "of a layer's kernels": {"KernelLayer", "Kept", "Rows", "backward", "forward", "surroundings"},
    "of an operation with kernels and without": {"add", "geglu", "gelu", "split_heads"},
    "of another program's format": {"read_model", "read_tokenizer"},
    "as in a textbook, and for training": {
        *("attention_bias", "dense", "label_logits", "layer_norm", "masked_token_logits", "pair_logits", "pooled"),
        "transformed",
    },
}
# A kernel's call (catalogue.py, call.py) and its source, which Triton reads, have one name.
KERNEL_NAMES = re.compile(r"\w+_(forward|backward|gradient)|reach_of")


def test_public_classes_and_functions_have_names_of_their_own():
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    shared = set().union(*SHARED_NAMES.values())
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    kernels = {name for name in several if KERNEL_NAMES.fullmatch(name)}
    assert all("gpu_kernels" in path for name in kernels for path in several[name])
    assert {name: paths for name, paths in several.items() if name not in shared | kernels} == {}
    assert shared <= several.keys()  # a name that one module alone has is no interface


def test_the_page_about_the_house_names_its_rooms_and_files_that_are_there():
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    rooms = [name for cell in table for name in re.findall(r"`(\w+)/`", cell)]
    assert rooms == [name for floor in ORDER[:-1] for name in floor if name != "__main__"]
    for named in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (PACKAGE / named).is_file() or (PROJECT / named).is_file(), named
