"""List the recipes that come with the program: model, tokens, days on one device, and what each reproduces.

bert-horovod recipes                        all of them, and how long one A100 takes
bert-horovod recipes --device V100          the same for another device
bert-horovod recipes bert-base > my.toml    print one, to be changed and trained: pretrain --recipe my.toml

Nothing runs: the times are those of `plan` on a single device, without a limit of memory. Several devices can share the
work; `plan --recipe FILE` computes the time that they lose to communication. Tokens are positions, with those that
packing leaves empty.
"""

import argparse
import dataclasses
import json
import math
from typing import Any

from bert_horovod.commands.shared.parser import read_with
from bert_horovod.costs.clusters import DeviceSheet, device_of
from bert_horovod.costs.derived import derive
from bert_horovod.costs.gpus import gpu_peak
from bert_horovod.costs.planner import Device, Network, plan_phase
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import (
    TAKE,
    about_experiments,
    load_recipe,
    shipped_recipe,
    shipped_recipes,
    what_for,
)
from bert_horovod.storage.reading import read_text
from bert_horovod.wording import about

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe's file instead of the list")
    device = parser.add_argument(
        "--device", default="A100", metavar="NAME", help="a GPU with a known data sheet (default: %(default)s)"
    )
    read_with(device, "for the list, or with --json", lambda arguments: arguments.name is None or arguments.json)
    parser.add_argument("--json", action="store_true", help="print the list as JSON; with NAME that recipe's entry")


def run(arguments: argparse.Namespace) -> None:
    """Print the list, or one recipe."""
    if arguments.name is not None:
        path = shipped_recipe(arguments.name)
        if arguments.json:
            print(json.dumps(_entry(path.stem, arguments.device)))
        else:
            print(read_text(path), end="")
        return
    recipes = sorted((_entry(name, arguments.device) for name in shipped_recipes()), key=lambda recipe: recipe["days"])
    print(json.dumps(recipes) if arguments.json else _text(recipes, arguments.device))


def _entry(name: str, device_name: str) -> dict[str, Any]:
    path = shipped_recipe(name)
    recipe = load_recipe(path)
    recipe, device = _on_device(recipe, device_name)
    alone = Network(math.inf)
    return {
        "name": name,
        "path": str(path),
        "layers": recipe.model.num_hidden_layers,
        "hidden_size": recipe.model.hidden_size,
        "parameters": derive(recipe, recipe.phase[-1], 1).parameters,
        "sequence_lengths": [phase.sequence_length for phase in recipe.phase],
        "global_batches": [phase.global_batch for phase in recipe.phase],
        "steps": recipe.total_steps,
        "tokens": recipe.positions(recipe.total_steps),
        "optimizer": recipe.optimizer.name,
        "device": device.name,
        "precision": recipe.numerics.precision,
        "days": sum(plan_phase(recipe, i, 1, device, alone).days for i in range(len(recipe.phase))),
        "reproduces": what_for(path),
        "take": TAKE.get(name),
        "experiments": about_experiments(recipe),
    }


def _on_device(recipe: Recipe, name: str) -> tuple[Recipe, Device]:
    """The recipe with a precision that the device accelerates, and the device; raises UserError if it is not known.

    Volta and Turing have no bfloat16: on these a recipe in bfloat16 is planned in float16.
    """
    precision = recipe.numerics.precision
    if precision == "bfloat16" and gpu_peak(name, "float16", True) and not gpu_peak(name, precision, True):
        precision = "float16"
        recipe = dataclasses.replace(recipe, numerics=dataclasses.replace(recipe.numerics, precision=precision))
    return recipe, device_of(DeviceSheet(name), "--", precision, "device")


def _text(recipes: list[dict[str, Any]], device: str) -> str:
    cells = [("recipe", "layers x width", "parameters", "tokens", "rows a step x length", "optimizer")]
    for recipe in recipes:
        rows = dict.fromkeys(zip(recipe["global_batches"], recipe["sequence_lengths"], strict=True))
        batches = ", ".join(f"{_short(batch)} x {length}" for batch, length in rows)
        model = f"{recipe['layers']} x {recipe['hidden_size']}"
        sizes = model, _short(recipe["parameters"]), _short(recipe["tokens"])
        cells.append((recipe["name"], *sizes, batches, recipe["optimizer"]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>><<", widths, strict=True))
        for row in cells
    ]
    lines = [f"{aligned[0]}  on one {device}"]
    for recipe, row in zip(recipes, aligned[1:], strict=True):
        lines += [
            f"{row}  {about(recipe['days'])}",
            f"    {recipe['reproduces']}",
            *(f"    {sentence}" for sentence in recipe["experiments"]),
        ]
    return "\n".join([*lines, "", *(f"take {name} {purpose}" for name, purpose in TAKE.items())])


def _short(number: int) -> str:
    """At most three digits: 110 M, 29.5 G; multiples of 1,024 in units of 1,024: 64 K rows."""
    for unit, letter in _UNITS:
        if number >= unit:
            thousands = number / unit
            if letter == "K" and number % 1024 == 0:
                thousands = number // 1024
            return f"{thousands:.3g} {letter}"
    return str(number)
