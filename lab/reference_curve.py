#!/usr/bin/env python3
r"""Train several seeds of a recipe and write the band of their losses, with which the program compares other runs.

python lab/reference_curve.py --recipe run/recipes/quickstart.toml --data_dir STORE --work DIR \
    --about "3 seeds on Python's documentation" --window 20

Each seed is a run under DIR/seed-N on --ranks ranks of this host; stopped, the same command goes on. The file goes to
bert_horovod/runs/references/ under the recipe's name; runs/reference_curves.py says what it holds.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import RunError, UserError
from bert_horovod.finetuning.sweep import variants
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runs.reference_curves import DIRECTORY, curve_settings
from bert_horovod.runs.status_files import read_sign
from bert_horovod.storage.writing import write_atomically
from lab.kept import read_lines
from lab.rounds import reported

LOGGED = 10  # losses of a window
NEIGHBOURS = 5  # windows on each side over which deviations are pooled


def band(losses: np.ndarray) -> dict[str, list[float]]:
    """Means, spreads and noises by window of losses, float64 [2 seeds or more, windows, losses of a window]."""
    seeds, windows, count = losses.shape
    place = np.arange(count) - (count - 1) / 2
    slopes = losses @ place / (place @ place)
    trend = losses.mean(2, keepdims=True) + slopes[..., None] * place
    noise = ((losses - trend) ** 2).sum((0, 2)) / (seeds * (count - 2))
    spread = losses.mean(2).var(0, ddof=1)

    def pooled(variances: np.ndarray) -> list[float]:
        near = [variances[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1] for i in range(windows)]
        return [round(math.sqrt(each.mean()), 5) for each in near]

    means = [round(float(mean), 5) for mean in losses.mean((0, 2))]
    return {"means": means, "spreads": pooled(spread), "noises": pooled(noise)}


def read_losses(output_dir: Path, window: int) -> np.ndarray:
    """The losses of a run, [windows, LOGGED]; raises RunError where some are missing or the run was stopped."""
    sign = read_sign(output_dir)
    if sign and sign.step < sign.last_step:  # a run that is asked to stop saves and ends with 0
        raise RunError(f"{output_dir}: stopped at step {sign.step} of {sign.last_step}; the same command goes on")
    every = window // LOGGED
    lines = [line for line in read_lines(output_dir / "metrics.jsonl") if "loss" in line and line["step"] % every == 0]
    kept_lines = len(lines) // LOGGED * LOGGED
    if [line["step"] for line in lines[:kept_lines]] != [every * (i + 1) for i in range(kept_lines)]:
        raise RunError(
            f"{output_dir}: metrics.jsonl has no loss of each {every} steps; execution.log_steps was another"
        )
    return np.array([line["loss"] for line in lines[:kept_lines]]).reshape(-1, LOGGED)


def train(arguments: argparse.Namespace, seed: int) -> Path:
    """A seed's run, to its end; returns its directory."""
    output_dir = arguments.work / f"seed-{seed}"
    words = [sys.executable, "-m", "bert_horovod", "launch", "-np", str(arguments.ranks), "--", "pretrain"]
    words += ["--recipe", str(arguments.recipe), "--data_dir", str(arguments.data_dir), "--output_dir", str(output_dir)]
    words += ["--max_steps", str(arguments.max_steps)] if arguments.max_steps else []
    for override in (*arguments.overrides, f"data.seed={seed}", f"execution.log_steps={arguments.window // LOGGED}"):
        words += ["--set", override]
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise RunError(f"seed {seed} ended with {done.returncode}; the same command goes on")
    return output_dir


@reported
def main() -> int:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE")
    parser.add_argument("--data_dir", required=True, type=Path, metavar="STORE")
    parser.add_argument("--work", required=True, type=Path, metavar="DIR", help="directory of the runs")
    parser.add_argument("--about", required=True, metavar="WORDS", help="what was run, on which data")
    parser.add_argument("--seeds", default="3", metavar="N", help="from 0 on, or a list: 0,2,3 (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--window", type=int, default=100, metavar="STEPS", help="a multiple of 10 (default: 100)")
    parser.add_argument("--max_steps", type=int, metavar="N", help="most steps of each run (default: all)")
    parser.add_argument("--this_store", action="store_true", help="the band is for runs on this text alone")
    add_overrides(parser)
    arguments = parser.parse_args()
    if arguments.window < LOGGED or arguments.window % LOGGED:
        raise UserError(f"--window {arguments.window}: expected a multiple of {LOGGED}")
    seeds = [variant.seed for variant in variants(arguments.seeds, None)]
    if len(seeds) < 2:
        raise UserError(f"--seeds {arguments.seeds}: expected at least 2")
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    curves = [read_losses(train(arguments, seed), arguments.window) for seed in seeds]
    shortest = min(map(len, curves))
    if not shortest:
        raise RunError(f"no run has {arguments.window} steps: --window is too long")
    reference = {
        "name": arguments.recipe.stem,
        "runs": arguments.about,
        "command": f"python lab/reference_curve.py --recipe {arguments.recipe} --window {arguments.window} "
        f"--seeds {arguments.seeds} --ranks {arguments.ranks}"
        + (f" --max_steps {arguments.max_steps}" if arguments.max_steps else "")
        + " --this_store" * arguments.this_store
        + "".join(f" --set {override}" for override in arguments.overrides),
        "seeds": len(seeds),
        "window": arguments.window,
        **band(np.stack([each[:shortest] for each in curves])),
        "settings": curve_settings(recipe),
        "texts": [open_store(arguments.data_dir).text_key] if arguments.this_store else [],
    }
    path = DIRECTORY / f"{arguments.recipe.stem}.json"
    write_atomically(path, json.dumps(reference) + "\n")
    print(f"{path}: {shortest} windows of {arguments.window} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
