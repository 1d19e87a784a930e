#!/usr/bin/env python3
"""Write docs/recipe.md: every setting of a recipe, from bert_horovod/recipe/sections.py and its comments.

python docs/make_recipe_page.py
"""

import ast
import dataclasses
import io
import json
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # works from a checkout that is not installed

from bert_horovod.recipe import sections  # noqa: E402
from bert_horovod.recipe.sections import Phase, Recipe  # noqa: E402

PAGE = ROOT / "docs" / "recipe.md"
HEAD = """# Settings of a recipe

A recipe is a TOML file; `bert-horovod recipes` lists those that come along, and `--recipe` takes their names too, as
in `--recipe bert-base`. `--set section.key=value` changes one
setting of it, `--set phase.0.key=value` one of a phase. `[execution]` says how the work is done, and may change when a
run is resumed; all other sections decide the result, and may not. A setting that is not given has its default.

This page is made from `bert_horovod/recipe/sections.py`, by `python docs/make_recipe_page.py`."""


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
    source = Path(sections.__file__).read_text(encoding="utf-8")
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
        return ", ".join(f"`{json.dumps(choice)}`" for choice in limits["choices"])
    kind, _, literal = annotation.partition(" | ")
    words = {"int": "whole number", "float": "number", "bool": "`true`, `false`", "str": "text"}
    signs = {"minimum": "from", "above": "above", "maximum": "to", "below": "below"}
    spans = [f"{sign} {limits[key]:,}" for key, sign in signs.items() if key in limits]
    found = " ".join([words.get(kind, "list of whole numbers"), *spans])
    return f'{found}; `"{ast.literal_eval(literal[8:-1])}"`' if literal else found


def section(name: str, kind: type) -> str:
    """The table of a section."""
    lines = []
    for entry in dataclasses.fields(kind):
        annotation, text = in_source(kind)[entry.name]
        default = json.dumps(list(entry.default) if isinstance(entry.default, tuple) else entry.default)
        text = text.replace("|", "\\|")
        lines.append(f"| `{entry.name}` | `{default}` | {values(entry, annotation)} | {text} |")
    intro = kind.__doc__.strip().splitlines()[0]
    return f"## {name}\n\n{intro}\n\n| setting | default | values | meaning |\n|---|---|---|---|\n" + "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for entry in dataclasses.fields(Recipe):
        if entry.name == "phase":
            parts.append(section("[[phase]]", Phase))
        else:
            parts.append(section(f"[{entry.name}]", entry.default_factory))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(page().splitlines())} lines")
