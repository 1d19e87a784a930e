#!/usr/bin/env python3
"""How good tuning is: what `bert-horovod tune` chooses beside the best of an exhaustive grid, and the time of both.

python lab/tune.py --data_dir D --work W --recipe run/recipes/bert-mini.toml --recipe run/recipes/bert-base.toml
python lab/tune.py --data_dir D --work W --recipe F --rows 16 --rows 32 --xla off      a smaller grid

One process on CPU cores; of a recipe the phase that takes longest, alone. The grid is every combination of micro-batch
(all of the global batch, a half of it, and so on), XLA mode, recomputation and threads; each cell is a trial as tune
makes it, to its end. Then the grid's best cells and tune's choice are measured again, in turns: ratio is tune's rows/s
over those of the best of them, from medians. Times include starts and compilation. A
stopped benchmark goes on: the cells' trials are kept in --work, one directory for each set of flags; tune begins anew.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.special_tokens import check_vocabulary
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.cluster.doctor.facts import available_memory_bytes
from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.costs.choices import RECOMPUTE
from bert_horovod.errors import ReportedError, RunError
from bert_horovod.measuring.tuning.candidates import XLA, Machine, micro_batches, resolved
from bert_horovod.measuring.tuning.prediction import longest_phase
from bert_horovod.measuring.tuning.trials import Settings, Trial, run_trial
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml
from bert_horovod.recipe_files.tuned import execution_overrides
from bert_horovod.reporting.tables import table
from bert_horovod.runtime.children import python_settings
from bert_horovod.runtime.processor import physical_cores
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.console import duration
from lab.rounds import in_turn, say

BEST, ROUNDS = 3, 3  # cells of the grid that are measured again, and how often
COLUMNS = {
    "recipe": ("recipe", str),
    "cells": ("cells", str),
    "grid_best": ("grid's best", str),
    "grid_rows_per_s": ("rows/s", "{:.4g}".format),
    "grid_s": ("grid's time", duration),
    "chosen": ("tune's choice", str),
    "chosen_rows_per_s": ("its rows/s", "{:.4g}".format),
    "tune_s": ("tune's time", duration),
    "ratio": ("ratio", "{:.3f}".format),
    "time_share": ("of the time", "{:.1%}".format),
    "gain": ("over the recipe", "{:.3f} x".format),
}


class Grid:
    """All cells of a recipe, measured as tune measures; what is measured is kept."""

    def __init__(self, arguments: argparse.Namespace, path: Path, store: Store, machine: Machine) -> None:
        self.arguments, self.name, self.machine = arguments, path.stem, machine
        recipe = load_recipe(path, arguments.overrides)
        check_vocabulary(recipe, store)
        self.recipe = dataclasses.replace(recipe, phase=(recipe.phase[longest_phase(recipe)],))
        self.path = arguments.work / path.name
        arguments.work.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, recipe_to_toml(self.recipe))
        open_rows(store, self.recipe, 0, "train", arguments.work / "index")  # no trial's time
        threads = [1 << i for i in range(machine.cores.bit_length()) if 1 << i <= machine.cores]
        axes = {
            "micro_batch": arguments.rows or micro_batches(self.recipe, 0, 1),
            "xla": arguments.xla or XLA,
            "recompute": arguments.recompute or RECOMPUTE,
            "threads": arguments.threads or threads,
        }
        self.cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        self.kept = arguments.work / f"{path.stem}.jsonl"  # the trials so far: [settings, round number, trial]
        lines = self.kept.read_text(encoding="utf-8").splitlines() if self.kept.exists() else []
        self.trials = [(settings, number, Trial(**trial)) for settings, number, trial in map(json.loads, lines)]

    def seconds(self, settings: Settings, number: int) -> tuple[float, float]:
        """A step's, and the trial's."""
        trial = next((trial for *key, trial in self.trials if key == [settings, number]), None)
        if trial is None:
            arguments = self.arguments
            words = ["bench", "throughput", "--recipe", str(self.path), "--data_dir", str(arguments.data_dir), "--json"]
            words += ["--index_dir", str(arguments.work / "index"), "--memory", arguments.memory]
            words += ["--seconds", str(arguments.seconds)]
            words += [word for override in execution_overrides(settings) for word in ("--set", override)]
            trial = run_trial(words, arguments.limit)
            self.trials.append((settings, number, trial))
            with self.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([settings, number, dataclasses.asdict(trial)]) + "\n")
            outcome = trial.failure or f"{trial.rows_per_s:.4g} rows/s"
            say(f"  {written(settings)}{f', round {number}' if number else ''}: {outcome} ({duration(trial.wall_s)})")
        return trial.step_s, trial.wall_s


def tune(grid: Grid) -> dict[str, Any]:
    """What the command prints."""
    arguments = grid.arguments
    words = ["tune", "--recipe", str(grid.path), "--data_dir", str(arguments.data_dir), "--json"]
    words += ["--limit", str(arguments.limit), "--index_dir", str(arguments.work / "index")]
    words += ["--seconds", str(arguments.seconds), "--memory", arguments.memory]
    done = subprocess.run(
        [sys.executable, "-m", "bert_horovod", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | python_settings(),
    )
    if done.returncode:
        raise RunError(f"bert-horovod {' '.join(words)} failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def measure(grid: Grid) -> dict[str, Any]:
    """A line of the table."""
    say(f"{grid.path}: tune")
    tuned = tune(grid)
    chosen = resolved(tuned["settings"], grid.machine)
    say(f"{grid.path}: {len(grid.cells)} cells")
    times = [grid.seconds(cell, 0) for cell in grid.cells]
    best = sorted(range(len(times)), key=lambda i: times[i][0])[:BEST]
    turns = [grid.cells[i] for i in best if grid.cells[i] != chosen] + [chosen]
    rounds = in_turn(range(len(turns)), ROUNDS, lambda i, number: grid.seconds(turns[i], number + 1)[0])
    step_s = [statistics.median(each) for each in rounds.values()]
    quickest = min(range(len(turns)), key=step_s.__getitem__)
    rows, grid_s = grid.recipe.phase[0].global_batch, sum(wall_s for _, wall_s in times)
    return {
        "recipe": grid.name,
        "cells": len(grid.cells),
        "grid_best": written(turns[quickest]),
        "grid_rows_per_s": rows / step_s[quickest],
        "grid_s": grid_s,
        "chosen": written(chosen),
        "chosen_rows_per_s": rows / step_s[-1],
        "tune_s": tuned["search_s"],
        "ratio": step_s[quickest] / step_s[-1],
        "time_share": tuned["search_s"] / grid_s,
        "gain": tuned["gain"],
    }


def written(settings: Settings) -> str:
    """Settings in a few words."""
    recompute = "" if settings["recompute"] == "none" else f", recompute {settings['recompute']}"
    return f"{settings['micro_batch']} rows, {settings['xla']}, {settings['threads']} thread(s){recompute}"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True, action="append", type=Path, metavar="FILE", help="repeatable")
    parser.add_argument("--data_dir", required=True, type=Path, help="token store")
    parser.add_argument("--work", required=True, type=Path, metavar="DIR", help="directory of all measurements")
    add_overrides(parser, "phase.0.global_batch=64")
    parser.add_argument(
        "--rows", type=int, action="append", help="rows of a micro-batch; repeatable, as the next three are"
    )
    parser.add_argument("--xla", action="append", choices=XLA, help="(default: all)")
    parser.add_argument("--recompute", action="append", choices=RECOMPUTE, help="(default: all)")
    parser.add_argument("--threads", type=int, action="append", help="(default: 1, 2, 4, ... as there are cores)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="seconds of timed steps of a trial (default: %(default)s)"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a trial (default: %(default)s)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory that a process may take (default: nine tenths of what is free)"
    )
    arguments = parser.parse_args(argv)
    arguments.memory = arguments.memory or str(9 * available_memory_bytes() // 10)
    for name in ("seconds", "limit"):
        if not 0 < getattr(arguments, name) < float("inf"):
            parser.error(f"--{name} {getattr(arguments, name):g}: expected a number above 0")
    return arguments


def main() -> int:
    """Measure what is missing and print the table."""
    arguments = parse()
    machine = Machine(len(os.sched_getaffinity(0)), physical_cores())
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rows = []
    try:
        store = open_store(arguments.data_dir)
        for path in arguments.recipe:
            grid = Grid(arguments, path, store, machine)
            rows.append(measure(grid))
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(table(rows, COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
