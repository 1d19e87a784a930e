"""Time the training step on synthetic full rows, beside its matrix products alone.

bert-horovod bench compute --model base                                     BERT-base, 16 rows of 128
bert-horovod bench compute --recipe F --set execution.xla=layers                a recipe's first phase
bert-horovod bench compute --model mini --profile trace                     and a trace of two steps

One process, one micro-batch a step, no input pipeline. docs/speed.md says how to read it.
"""

import argparse
import json
from pathlib import Path

from bert_horovod.commands.shared.step_flags import add_step, step_recipe
from bert_horovod.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    add_step(parser)
    parser.add_argument("--profile", type=Path, metavar="DIR", help="write a TensorBoard trace of two steps to DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Measure, and print the results."""
    recipe = step_recipe(arguments)
    if arguments.profile and arguments.profile.exists() and not arguments.profile.is_dir():
        raise UserError(f"--profile {arguments.profile}: that is a file; name a directory for the trace")
    from bert_horovod.measuring.step_time import TimedStep, measure, trace
    from bert_horovod.reporting.tables import table
    from bert_horovod.runtime.devices import use_devices

    use_devices(0, 1, recipe.execution.threads)
    step = TimedStep(recipe)
    measured = measure(step, arguments.steps)
    if arguments.profile:
        measured["trace"] = str(trace(step.run, arguments.profile))
    if arguments.json:
        print(json.dumps(measured))
        return
    print(table([measured]))
    print(
        f"matrix products alone: {measured['products_s']:.4g} s, "
        f"forward and backward {measured['forward_backward_s']:.4g} s"
    )
    if arguments.profile:
        print(f"trace: {measured['trace']}")
