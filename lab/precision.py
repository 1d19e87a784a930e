#!/usr/bin/env python3
"""How far training drifts from float32: one recipe, one seed, in each precision and form of computation.

python lab/precision.py --data_dir STORE --recipe run/recipes/bert-mini.toml [--steps 200]

Every line is a run of run/run_pretraining.py, one after another, to step N of the recipe's own schedule. The reference
is float32 with XLA off. A variant is PRECISION-XLA or PRECISION-XLA-RECOMPUTE, by the values of numerics.precision,
execution.xla and execution.recompute, which a --set does not change. The loss at a step is the mean of the 10 steps up
to it, but for step 1. The largest difference is that of any one step's loss, relative to the reference's; the last
column of differences is the mean of the last 20 steps', in nats: below zero, the variant has learned more. Seconds are
the median step's, the input included. A run that fails is named on standard error and left out.
"""

import argparse
import collections
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.reporting.tables import table
from lab.rounds import PROJECT, reported, say

REFERENCE = "float32-off"
VARIANTS = ("float32-elementwise", "float32-off-layer", "bfloat16-elementwise", "bfloat16-off", "float16-elementwise")
SMOOTHED, LAST = 10, 20  # steps


def settings(variant: str) -> list[str]:
    """A variant's settings, as --set takes them; raises UserError for a name that is none."""
    names = ("numerics.precision", "execution.xla", "execution.recompute")
    values = variant.split("-")
    if len(values) not in (2, 3):
        raise UserError(f"variant {variant!r}: expected PRECISION-XLA or PRECISION-XLA-RECOMPUTE, as in {VARIANTS[0]}")
    return [f"{name}={value}" for name, value in zip(names, [*values, "none"][:3], strict=True)]


def train(variant: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train to step --steps; what the run logged of each step. Raises RunError, with its last words, if it fails."""
    fixed = {
        "log_steps": 1,
        "evaluate_steps": 0,
        "evaluate_rows": 1,  # a run evaluates at its end all the same
        "checkpoint_steps": arguments.steps,
        "tensorboard": "false",
    }
    overrides = [*arguments.overrides, *settings(variant), *(f"execution.{key}={fixed[key]}" for key in fixed)]
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "run")
        command = [sys.executable, str(PROJECT / "run" / "run_pretraining.py"), "--recipe", arguments.recipe]
        command += ["--data_dir", str(arguments.data_dir), "--output_dir", str(output)]
        command += ["--max_steps", str(arguments.steps)]
        command += ["--index_dir", str(arguments.index_dir)] if arguments.index_dir else []
        command += [word for override in overrides for word in ("--set", override)]
        _follow(variant, command, max(1, arguments.steps // 10))
        logged = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in logged if "loss" in line]


def _follow(variant: str, command: list[str], every: int) -> None:
    """Run a training command and tell of each `every`-th step."""
    words: collections.deque[str] = collections.deque(maxlen=5)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout:
                words.append(line.strip())
                step = re.match(r"step (\d+)/", line)
                if step and int(step[1]) % every == 0:
                    say(f"{variant}: {line.strip()}")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise RunError(f"{variant} ended with {process.returncode}: " + "\n  ".join(words))


def result(variant: str, logged: list[dict[str, Any]], reference: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table; the reference's own has no differences. A loss that was not finite makes nan of figures."""
    losses, others = (np.array([line["loss"] for line in lines], np.float64) for lines in (logged, reference))
    count = len(losses)
    precision, xla, recompute = (setting.partition("=")[2] for setting in settings(variant))
    return {
        "configuration": f"{precision}, XLA {xla}" + (f", recompute {recompute}" if recompute != "none" else ""),
        "first": losses[0],
        **{
            name: losses[max(0, end - SMOOTHED) : end].mean()
            for name, end in (("quarter", count // 4), ("half", count // 2), ("end", count))
        },
        "largest": None if logged is reference else np.max(np.abs(losses - others) / np.abs(others)),
        "last": None if logged is reference else (losses - others)[-LAST:].mean(),
        "skipped": logged[-1]["skipped_steps"],
        "seconds": statistics.median(line["step_s"] for line in logged[1:]),
    }


def columns(steps: int) -> dict[str, tuple[str, Any]]:
    """Headings and forms of a table of runs of so many steps."""
    loss = "{:.5f}".format
    return {
        "first": ("loss at step 1", loss),
        "quarter": (f"at {steps // 4}", loss),
        "half": (f"at {steps // 2}", loss),
        "end": (f"at {steps}", loss),
        "largest": ("largest difference", "{:.1e}".format),
        "last": (f"last {min(LAST, steps)} steps", "{:+.1e}".format),
        "skipped": ("skipped", str),
        "seconds": ("step s", "{:.4g}".format),
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, type=Path, help="token store")
    parser.add_argument("--recipe", required=True, metavar="FILE", help="recipe in TOML; see run/recipes/")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument(
        "--variants",
        type=lambda text: text.split(","),
        default=list(VARIANTS),
        metavar="A,B,C",
        help=f"beside the reference (default: {','.join(VARIANTS)})",
    )
    parser.add_argument("--index_dir", type=Path, help="where row indices go if the token store is read-only")
    add_overrides(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps < 4:
        parser.error(f"--steps {arguments.steps}: expected at least 4")
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Raise UserError for a recipe or a variant that cannot be, before anything takes time."""
    for variant in (REFERENCE, *arguments.variants):
        recipe = load_recipe(arguments.recipe, [*arguments.overrides, *settings(variant)])
    if arguments.steps > recipe.total_steps:
        raise UserError(f"--steps {arguments.steps}: expected at most {recipe.total_steps}, the recipe's own")


@reported
def main() -> int:
    """Train and print the table."""
    arguments = parse()
    lines = []
    check(arguments)
    reference = train(REFERENCE, arguments)
    lines.append(result(REFERENCE, reference, reference))
    for variant in dict.fromkeys(arguments.variants):
        try:
            lines.append(result(variant, train(variant, arguments), reference))
        except RunError as error:
            say(f"left out: {error}")
    print(table(lines, columns(arguments.steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
