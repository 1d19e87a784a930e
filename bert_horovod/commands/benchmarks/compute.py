"""Time the training step on synthetic full rows, beside its matrix products alone.

bert-horovod bench compute --model base                                     BERT-base, 16 rows of 128
bert-horovod bench compute --recipe F --set execution.xla=layers                a recipe's first phase
bert-horovod bench compute --model mini --profile trace                     and where the time goes

One process, one micro-batch a step, no input pipeline. docs/speed.md says how to read it.
"""

import argparse
import json
from pathlib import Path

from bert_horovod.config import Recipe, load_recipe
from bert_horovod.errors import UserError
from bert_horovod.flags import add_overrides
from bert_horovod.performance.configuration import SIZES, size_recipe
from bert_horovod.quiet import import_tensorflow

_SHORTEST_ROW = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--recipe", type=Path, metavar="FILE", help="recipe in TOML; its first phase is measured")
    what.add_argument("--model", choices=tuple(SIZES), help="without a recipe: a model's size (default: base)")
    add_overrides(parser, "numerics.precision=bfloat16")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a step (default: the recipe's micro-batch)")
    parser.add_argument("--length", type=int, metavar="N", help="positions of a row (default: the recipe's)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps (default: %(default)s)")
    parser.add_argument(
        "--profile", type=Path, metavar="DIR", help="write a TensorBoard trace of two steps there, and list operations"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int | None:
    """Measure, and print what was found."""
    recipe = _recipe(arguments)
    if arguments.profile and arguments.profile.exists() and not arguments.profile.is_dir():
        raise UserError(f"--profile {arguments.profile}: that is a file; name a directory for the trace")
    import_tensorflow()
    from bert_horovod.collectives.world import World, use_devices
    from bert_horovod.performance import profile
    from bert_horovod.performance.compute import TimedStep, measure
    from bert_horovod.performance.report import table

    use_devices(World(), recipe.execution.threads)
    step = TimedStep(recipe)
    found = measure(step, arguments.steps)
    listed, written = [], None
    if arguments.profile:
        written = profile.trace(step.run, arguments.profile)
        listed = profile.operations(written)[: profile.TOP]
        found |= {"trace": str(written), "operations": [entry._asdict() for entry in listed]}
    if arguments.json:
        print(json.dumps(found))
        return None
    print(table([found]))
    print(
        f"matrix products alone: {found['products_s']:.4g} s, forward and backward {found['forward_backward_s']:.4g} s"
    )
    if written:
        print(f"\n{profile.table(listed)}\ntrace: {written}")
    return None


def _recipe(arguments: argparse.Namespace) -> Recipe:
    for flag, least in (("steps", 1), ("rows", 1), ("length", _SHORTEST_ROW)):
        value = getattr(arguments, flag)
        if value is not None and value < least:
            raise UserError(f"--{flag} {value}: expected at least {least}")
    if arguments.recipe is None:
        return size_recipe(arguments.model or "base", arguments.overrides, arguments.rows, arguments.length)
    overrides = list(arguments.overrides)
    if arguments.rows is not None:
        overrides.append(f"execution.micro_batch={arguments.rows}")
    if arguments.length is not None:
        overrides.append(f"phase.0.sequence_length={arguments.length}")
    return load_recipe(arguments.recipe, overrides)
