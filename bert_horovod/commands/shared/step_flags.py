"""Flags of the benchmarks of the step."""

import argparse
from pathlib import Path

from bert_horovod.commands.shared.flags import RECIPE, add_overrides, require_least
from bert_horovod.measuring.configuration import SHORTEST_ROW, SIZES, size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe


def add_step(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a benchmark of the step."""
    configuration = parser.add_mutually_exclusive_group()
    configuration.add_argument("--recipe", type=Path, metavar="FILE", help=RECIPE + "; its first phase is measured")
    configuration.add_argument(
        "--model", choices=tuple(SIZES), help="without a recipe: the model's size (default: base)"
    )
    add_overrides(parser, "numerics.precision=bfloat16")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a micro-batch (default: the recipe's)")
    parser.add_argument("--length", type=int, metavar="N", help="positions of a row (default: the recipe's)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps (default: %(default)s)")


def step_recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe for the flags of `add_step`; raises UserError."""
    for flag, least in (("steps", 1), ("rows", 1), ("length", SHORTEST_ROW)):
        require_least(f"--{flag}", getattr(arguments, flag), least)
    if arguments.recipe is None:
        return size_recipe(arguments.model or "base", arguments.overrides, arguments.rows, arguments.length)
    overrides = list(arguments.overrides)
    if arguments.rows is not None:
        overrides.append(f"execution.micro_batch={arguments.rows}")
    if arguments.length is not None:
        overrides.append(f"phase.0.sequence_length={arguments.length}")
    return load_recipe(arguments.recipe, overrides).of_phase(0)
