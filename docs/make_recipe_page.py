#!/usr/bin/env python3
"""Write docs/recipe.md: every setting of a recipe, from the dataclasses of its sections and their comments.

python docs/make_recipe_page.py
"""

import ast
import dataclasses
import inspect
import io
import json
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # works from a checkout that is not installed

from bert_horovod.recipe.fields import OneOf  # noqa: E402
from bert_horovod.recipe.methods_found import is_experiment  # noqa: E402
from bert_horovod.recipe_files.loading import SECTIONS  # noqa: E402

PAGE = ROOT / "docs" / "recipe.md"
HEAD = """# Settings of a recipe

A recipe is a TOML file; `bert-horovod recipes` lists those that come along, and `--recipe bert-base` takes one by name.
`--set section.key=value` changes one setting of it, `--set phase.0.key=value` one of a phase.
`[execution]` says how the work is done, and `[card]` what the model card tells; both may change when a run is resumed.
All other sections decide the result, and may not.
A setting that is not given has its default.

Update rules and exchanges have settings of their own; others do not take them.
A setting of another method is passed over if it has its default, because the files of earlier runs list all settings.

This page is made from the code by `python docs/make_recipe_page.py`."""

EXPERIMENTAL = " [An experiment](methods.md#experiments)."


def comments(source: str) -> dict[int, tuple[str, bool]]:
    """The comments of a Python source by line: their text, and whether they have the line alone."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line[: token.start[1]].strip() == ""
            found[token.start[0]] = token.string.removeprefix("#").strip(), alone
    return found


def in_source(kind: type) -> dict[str, tuple[str, str]]:
    """Of each field of a section its annotation and its comments: those above it, then those behind it."""
    found = {}
    for each in reversed(kind.__mro__):
        if dataclasses.is_dataclass(each):
            found |= in_class(each)
    return {entry.name: found[entry.name] for entry in dataclasses.fields(kind)}


def in_class(kind: type) -> dict[str, tuple[str, str]]:
    """The same of the annotations in one class."""
    source = Path(inspect.getsourcefile(kind)).read_text(encoding="utf-8")
    said = comments(source)
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found = {}
    for node in classes[kind.__name__].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        behind = [said[line][0] for line in range(node.lineno, node.end_lineno + 1) if line in said]
        above, line = [], node.lineno - 1
        while line in said and said[line][1]:
            above.insert(0, said[line][0])
            line -= 1
        text = ". ".join(filter(None, (" ".join(above), " ".join(behind))))
        found[node.target.id] = ast.unparse(node.annotation), text
    return found


def values(entry: dataclasses.Field, annotation: str) -> str:
    """Which values a setting takes, in words."""
    limits = entry.metadata
    if "choices" in limits:
        choices = ", ".join(f"`{json.dumps(choice)}`" for choice in limits["choices"])
        return f"list of {choices}" if annotation.startswith("tuple") else choices
    kind, _, literal = annotation.partition(" | ")
    words = {
        "int": "whole number",
        "float": "number",
        "bool": "`true`, `false`",
        "str": "text",
        "Numbers": "table of names and numbers",
        "tuple[str, ...]": "list of texts",
    }
    signs = {"minimum": "from", "above": "above", "maximum": "to", "below": "below"}
    spans = [f"{sign} {limits[key]:,}" for key, sign in signs.items() if key in limits]
    found = " ".join([words[kind], *spans])
    literals = ast.literal_eval(f"({literal[8:-1]},)") if literal else ()
    return "; ".join([found, *(f'`"{word}"`' for word in literals)])


def cells(kind: type, entry: dataclasses.Field) -> str:
    """Default, values and meaning of a setting, as cells of a table."""
    annotation, text = in_source(kind)[entry.name]
    default = json.dumps(list(entry.default) if isinstance(entry.default, tuple) else entry.default)
    if condition := entry.metadata.get("read_if"):
        text = f"{text}. Read with {condition.words} only".removeprefix(". ")
    text = text.replace("|", "\\|")
    return f"`{default}` | {values(entry, annotation)} | {text} |"


def intro(kind: type) -> str:
    """What a section says of itself in one line."""
    return kind.__doc__.strip().splitlines()[0]


def section(name: str, kind: type) -> str:
    """The table of a section."""
    lines = [f"| `{entry.name}` | {cells(kind, entry)}" for entry in dataclasses.fields(kind)]
    head = "| setting | default | values | meaning |\n|---|---|---|---|\n"
    return f"## {name}\n\n{intro(kind)}\n\n{head}" + "\n".join(lines)


def section_of_methods(name: str, one_of: OneOf) -> str:
    """The tables of a section whose settings depend on its method: the methods, then their settings."""
    base = next(iter(one_of.kinds.values())).__mro__[-2]
    methods = [
        f"| `{json.dumps(method)}` | {intro(kind)}{EXPERIMENTAL * is_experiment(kind)} |"
        for method, kind in one_of.kinds.items()
    ]
    methods[0] = methods[0].replace("` |", "`, the default |", 1)
    taken_by: dict[str, dict[str, list[str]]] = {}  # methods by setting and cells
    for method, kind in one_of.kinds.items():
        for entry in dataclasses.fields(kind):
            if entry.init:
                taken_by.setdefault(entry.name, {}).setdefault(cells(kind, entry), []).append(f"`{method}`")
    lines = [
        f"| `{setting}` | {'all' if len(of) == len(one_of.kinds) else ', '.join(of)} | {text}"
        for setting, by_cells in taken_by.items()
        for text, of in by_cells.items()
    ]
    return (
        f"## [{name}]\n\n{intro(base)}\n\n| `{one_of.key}` | meaning |\n|---|---|\n"
        + "\n".join(methods)
        + "\n\n| setting | of | default | values | meaning |\n|---|---|---|---|---|\n"
        + "\n".join(lines)
    )


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, kind in SECTIONS.items():
        if isinstance(kind, OneOf):
            parts.append(section_of_methods(name, kind))
        else:
            parts.append(section(f"[[{name}]]", *kind) if isinstance(kind, list) else section(f"[{name}]", kind))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(page().splitlines())} lines")
