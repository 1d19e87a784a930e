"""Flags of the benchmarks of the step."""

import argparse
from pathlib import Path

from bert_horovod.commands.shared.flags import RECIPE, add_overrides, require_least
from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import SIZES, size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, tuned_overrides


def add_step(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a benchmark of the step."""
    configuration = parser.add_mutually_exclusive_group()
    configuration.add_argument("--recipe", type=Path, metavar="FILE", help=RECIPE)
    configuration.add_argument(
        "--model",
        choices=tuple(SIZES),
        help="without a recipe: a model's size, a micro-batch a rank and step (default: base)",
    )
    add_overrides(parser, "numerics.precision=bfloat16")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps (default: %(default)s)")


def step_recipe(arguments: argparse.Namespace, ranks: int = 1, number: int = 0) -> Recipe:
    """The recipe of one phase for the flags of `add_step`, and --tuned if there is any; raises UserError."""
    require_least("--steps", arguments.steps)
    overrides = [*tuned_overrides(getattr(arguments, "tuned", None)), *arguments.overrides]
    if arguments.recipe is not None:
        recipe = load_recipe(arguments.recipe, overrides)
    else:
        size, rows = arguments.model or "base", 0
        if not any(each.partition("=")[0].endswith("global_batch") for each in overrides):
            rows = ranks * size_recipe(size, overrides).execution.micro_batch
            overrides = [f"phase.0.global_batch={rows}", *overrides]
        recipe = size_recipe(size, overrides)
    if not 0 <= number < len(recipe.phase):
        raise UserError(f"--phase {number}: the recipe has phases 0 to {len(recipe.phase) - 1}")
    return recipe.of_phase(number)
