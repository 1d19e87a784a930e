#!/usr/bin/env python3
"""Counts false alarms of checks of gradients and of slow ranks, and measures what the checks cost.

python lab/replay.py alarms --output alarms.jsonl             500 checks in each configuration; goes on where it ended
python lab/replay.py noise --output noise.jsonl               two ranks of one thread, 1,000 steps each
python lab/replay.py cost                                     K = 1 and 4: what a check and a timed step add

Ranks under horovodrun train a small BERT on the made-up text of lab/soak.py. A check that finds a difference ends the
run with exit code 4, so a run that ends in order had none.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from lab.kept import add_line, read_lines
from lab.rounds import variables
from lab.soak import make_input

STEPS, RUNS, LAST = 500, 6, 200  # of alarms; of noise; the last step of cost
MODERN = ("model.architecture='modernbert'", "objective.pair='none'")
ALBERT = ("model.shared_layers=1", "model.embedding_size=32")
HALF = ("numerics.precision='float16'", "numerics.wire='float16'")
BFLOAT = ("numerics.precision='bfloat16'", "numerics.wire='float32'")
SINGLE = ("numerics.precision='float32'", "numerics.wire='float32'")
ONE_BIT = ("optimizer.name='adamw'", "exchange.method='onebit_adam'", "exchange.dense=0.3")
LOW_RANK = ("exchange.method='powersgd'",)
K1, K4 = ("execution.micro_batch=32",), ("execution.micro_batch=4",)
ROWS = ("execution.bucket_bytes='auto'",)  # by measurement: looked-up rows may be sent alone
XLA = ("execution.xla='elementwise'",)
CONFIGURATIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "1 rank, float32, K = 1": (1, (*SINGLE, *K1)),
    "1 rank, float16, K = 8": (1, (*HALF, *K4)),
    "1 rank, bfloat16, ModernBERT, K = 1": (1, (*BFLOAT, *MODERN, *K1)),
    "1 rank, float32, ALBERT, K = 8": (1, (*SINGLE, *ALBERT, *K4)),
    "2 ranks, float32, K = 1": (2, (*SINGLE, *K1)),
    "2 ranks, float32, K = 4": (2, (*SINGLE, *K4)),
    "2 ranks, float16, XLA, K = 1, rows by measurement": (2, (*HALF, *K1, *ROWS, *XLA)),
    "2 ranks, bfloat16, ALBERT, K = 1": (2, (*BFLOAT, *ALBERT, *K1)),
    "2 ranks, bfloat16, PowerSGD, K = 1": (2, (*BFLOAT, *LOW_RANK, *K1)),
    "2 ranks, float32, ModernBERT, PowerSGD, K = 4": (2, (*SINGLE, *MODERN, *LOW_RANK, *K4)),
    "2 ranks, float32, 1-bit Adam, K = 4": (2, (*SINGLE, *ONE_BIT, *K4)),
    "2 ranks, float16, ModernBERT, 1-bit Adam, K = 1": (2, (*HALF, *MODERN, *ONE_BIT, *K1)),
    "3 ranks, float32, XLA, K = 1": (3, (*SINGLE, *K1, *XLA)),
    "3 ranks, float16, ALBERT, K = 3": (3, (*HALF, *ALBERT, *K4)),
    "3 ranks, bfloat16, ModernBERT, PowerSGD, K = 1": (3, (*BFLOAT, *MODERN, *LOW_RANK, *K1)),
}
LARGER = (
    *("model.hidden_size=128", "model.num_hidden_layers=4", "model.num_attention_heads=4"),
    *("model.intermediate_size=512", f"phase.0.steps={LAST}", "phase.0.global_batch=32", "phase.1.steps=1"),
)


def train(directory: Path, ranks: int, settings: tuple[str, ...]) -> tuple[int, list[dict[str, Any]], str]:
    """Train the recipe with these settings: exit code, lines of metrics.jsonl, and what was printed."""
    output_dir = directory / "run"
    shutil.rmtree(output_dir, ignore_errors=True)
    rare = ("execution.checkpoint_steps=1000", "execution.evaluate_steps=0", "execution.consistency_steps=0")
    rare += ("model.num_hidden_layers=2",)
    words = [sys.executable, "-m", "bert_horovod", "launch", "-np", str(ranks), "--", "pretrain"]
    words += ["--recipe", directory / "recipe.toml", "--data_dir", directory / "store", "--output_dir", output_dir]
    words += [word for setting in (*rare, *settings) for word in ("--set", setting)]
    done = subprocess.run(words, env=variables(), capture_output=True, text=True, check=False)
    log = output_dir / "metrics.jsonl"
    return done.returncode, read_lines(log), done.stdout + done.stderr


def alarms(directory: Path, output: Path) -> None:
    """Add a line for each configuration that the file lacks."""
    done = [line["name"] for line in read_lines(output)]
    for name, (ranks, settings) in CONFIGURATIONS.items():
        if name in done:
            continue
        code, log, text = train(directory, ranks, ("execution.replay_steps=1", *settings))
        steps = [line for line in log if "loss" in line]
        found = {
            "name": name,
            "code": code,
            "checks": len(steps) - steps[-1]["skipped_steps"] if steps else 0,
            "alarms": [line["incident"] for line in log if "gradient" in line.get("incident", "")],
        }
        if code:
            found["text"] = text[-3000:]
        add(output, found)


def noise(directory: Path, output: Path) -> None:
    """Add a line for each run of 1,000 steps that the file lacks: ranks that were called slow."""
    done = len(read_lines(output))
    for number in range(done, RUNS):
        steps = ("phase.0.steps=500", "phase.1.steps=500", "execution.replay_steps=0")
        code, log, _ = train(directory, 2, (*SINGLE, *K1, *steps, f"data.seed={number}"))
        incidents = [each["incident"] for each in log if "incident" in each]
        timed = [line for line in log if line.get("compute_s")]
        ratios = [[line["slowest_rank"], round(line["slowest_compute_s"] / line["compute_s"], 2)] for line in timed]
        add(output, {"run": number, "code": code, "slowest": ratios, "slow": incidents})


def cost(directory: Path) -> None:
    """Print the time of a check, and of a timed step in runs without checks, each over the steps from one to the next.

    Which steps are timed is chosen by the run: the more seldom the more a timed one adds.
    """
    print("micro-batches  replay_steps   a step       adds  of 500 steps, of 100")
    for every in (10, 0):
        for count, micro_batch in ((1, 16), (4, 4)):
            settings = (*SINGLE, *LARGER, f"execution.micro_batch={micro_batch}", f"execution.replay_steps={every}")
            code, log, text = train(directory, 2, settings)
            if code:
                raise SystemExit(text)
            step_s = {line["step"]: line["step_s"] for line in log if "loss" in line}
            timed = {line["step"] for line in log if line.get("compute_s")}
            checked = set(range(0, LAST, every)) if every else set()
            # What comes after a step's line is in the next one: the comparison of a check, the exchange of times.
            beside = {step + after for step in timed | checked for after in (0, 1)}
            plain = statistics.median(step_s[step] for step in range(22, LAST) if step not in beside)
            alone = [step for step in (checked - timed if every else timed) if 20 <= step < LAST]
            added = statistics.median(step_s[step] + step_s[step + 1] - 2 * plain for step in alone)
            share = added / plain / (STEPS if every else 100)  # how often it is done by default, or at most
            print(f"{count:13}  {every:12}  {plain:.3f} s  {added:7.3f} s  {share:12.2%}", flush=True)


def add(output: Path, found: dict[str, Any]) -> None:
    """Add a line to the file, and show it."""
    add_line(output, found)
    print(found, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("alarms", "noise", "cost"))
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: alarms.jsonl or noise.jsonl")
    arguments = parser.parse_args()
    output = arguments.output or Path(f"{arguments.work}.jsonl")
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        make_input(Path(scratch), STEPS)
        if arguments.work == "alarms":
            alarms(Path(scratch), output)
        elif arguments.work == "noise":
            noise(Path(scratch), output)
        else:
            cost(Path(scratch))


if __name__ == "__main__":
    main()
