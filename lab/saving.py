#!/usr/bin/env python3
"""What checkpoints cost a training step: a run that saves beside one that does not, in turn.

python lab/saving.py --data_dir STORE --recipe run/recipes/bert-base.toml --set phase.0.global_batch=8

Real runs of one process. A run's mean step is its wall time from the end of step 1 to the end of the last step, over
the steps between. Saves fall evenly between them; the one after the last step, which every run makes, is not counted.
Runs of both kinds take turns; mean is over the runs of a kind; the cost of a save is the difference times steps over
saves.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.reporting.tables import lines
from lab.rounds import PROJECT, in_turn, say


def mean_step_s(arguments: argparse.Namespace, every: int) -> float:
    """Run, saving every so many steps; seconds."""
    with tempfile.TemporaryDirectory(prefix="saving-", dir=arguments.disk) as directory:
        settings = [f"execution.checkpoint_steps={every}", "execution.log_steps=1", "execution.evaluate_steps=0"]
        settings += ["execution.evaluate_rows=8", "execution.tensorboard=false", *arguments.overrides]
        words = ["pretrain", "--recipe", arguments.recipe, "--data_dir", arguments.data_dir, "--output_dir", directory]
        words += ["--max_steps", str(arguments.steps)] + [word for each in settings for word in ("--set", each)]
        path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "bert_horovod", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        logged = [json.loads(line) for line in Path(directory, "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in logged if "time" in line]
    return (times[-1] - times[0]) / (len(times) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, metavar="DIR", help="token store")
    parser.add_argument("--recipe", required=True, metavar="FILE")
    parser.add_argument("--steps", type=int, default=101, metavar="N", help="steps of a run (default: %(default)s)")
    parser.add_argument("--saves", type=int, default=2, metavar="N", help="saves of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each kind (default: %(default)s)")
    parser.add_argument("--disk", metavar="DIR", help="where checkpoints go (default: the temporary directory)")
    add_overrides(parser, "phase.0.global_batch=8")
    arguments = parser.parse_args()

    def run(saves: bool, _: int) -> float:
        every = -(-arguments.steps // (arguments.saves + 1)) if saves else arguments.steps
        seconds = mean_step_s(arguments, every)
        say(f"{'with' if saves else 'without'} saves: {seconds:.4f} s")
        return seconds

    step_s = in_turn((False, True), arguments.rounds, run)
    without, with_saves = (statistics.mean(step_s[kind]) for kind in (False, True))
    cost = (with_saves - without) * (arguments.steps - 1) / arguments.saves
    heading = ("saves", "mean step s", "more", "s a save")
    none = ("0", f"{without:.4f}", "", "")
    print(
        lines(
            [
                heading,
                none,
                (str(arguments.saves), f"{with_saves:.4f}", f"{with_saves / without - 1:+.2%}", f"{cost:.2f}"),
            ]
        )
    )


if __name__ == "__main__":
    main()
