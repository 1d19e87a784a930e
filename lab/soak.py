#!/usr/bin/env python3
"""Kills a run again and again, resumes it, and compares what comes out with a run that nobody disturbed.

python lab/soak.py --kills 50
python lab/soak.py --kills 3 --steps 120
python lab/soak.py --set optimizer.name=adamw --set exchange.method=onebit_adam --set exchange.dense=0.3

Ranks under horovodrun train a small BERT on made-up text: two phases, dropout, float16 with overflows, float16 wire,
evaluations, a checkpoint every few steps; buckets by size, since measured ones, and with them rounding, differ from run
to run. kill -9 hits all ranks, one of them, or horovodrun; while they start, while they train, or while a checkpoint is
being written; then the same command is given again. At the end the step's own values of metrics.jsonl, the evaluations,
and the last checkpoint's parameters, optimizer and what each rank keeps alone must be those of the undisturbed run, bit
for bit. Exit code: 0 if they are, 1 otherwise.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import takewhile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.reporting.tables import lines

PROJECT = Path(__file__).resolve().parents[1]
TARGETS = ("all ranks", "one rank", "horovodrun")
MOMENTS = ("start", "training", "save")
START_S, TRAINING_STEPS = 8.0, 40  # a kill comes at a random moment within
GONE_S = 30.0  # until nothing of a killed run may be left
STEP = "<stdout>:step "
RECIPE = """
[model]
vocab_size = {words}
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 128
max_position_embeddings = 64
[optimizer]
name = "lans"
[numerics]
precision = "float16"
wire = "float16"
initial_loss_scale = 16777216.0
loss_scale_growth_steps = 10
[execution]
micro_batch = 8
threads = 1
xla = "off"
log_steps = 1
checkpoint_steps = 4
evaluate_steps = 10
evaluate_rows = 32
consistency_steps = 5
bucket_bytes = 65536
tensorboard = false
[[phase]]
sequence_length = 32
global_batch = 32
steps = {first}
learning_rate = 0.002
warmup = 0.1
[[phase]]
sequence_length = 64
global_batch = 24
steps = {second}
learning_rate = 0.001
warmup = 0.1
"""


def make_input(directory: Path, steps: int) -> None:
    """A token store of made-up text, and a recipe."""
    draw = random.Random(0)
    letters = [a + b + c for a in "bdfgkl" for b in "aeiou" for c in "mnprst"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    (directory / "vocab.txt").write_text("\n".join(special + letters) + "\n")
    (directory / "text").mkdir()
    for number in range(40):
        paragraphs = [
            " ".join(" ".join(draw.choices(letters, k=draw.randint(4, 20))).capitalize() + "." for _ in range(6))
            for _ in range(20)
        ]
        (directory / "text" / f"{number}.txt").write_text("\n\n".join(paragraphs))
    words = ["--input", directory / "text", "--vocab", directory / "vocab.txt", "--output_dir", directory / "store"]
    words += ["--held_out", "0.1"]
    command = [sys.executable, "-m", "bert_horovod", "prepare", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    first = steps // 2
    text = RECIPE.format(words=len(special + letters), first=first, second=steps - first)
    (directory / "recipe.toml").write_text(text)


def environment() -> dict[str, str]:
    """The one for a rank: this project, no GPU."""
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Attempt:
    """A start of the run in `output_dir`; its output goes to a file."""

    def __init__(self, directory: Path, output_dir: Path, ranks: int, overrides: list[str]) -> None:
        horovodrun = [sys.executable, Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", str(ranks)]
        script = [sys.executable, PROJECT / "run" / "run_pretraining.py", "--recipe", directory / "recipe.toml"]
        script += ["--data_dir", directory / "store", "--output_dir", output_dir]
        for override in overrides:
            script += ["--set", override]
        self.output_dir, self.log = output_dir, directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*horovodrun, *script], stdout=log, stderr=log, start_new_session=True, env=environment()
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """All that there are: the environment's HOROVOD_RANK by process id, "" for horovodrun and its helpers."""
        ranks = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.output_dir) not in (entry / "cmdline").read_text(errors="replace"):
                    continue
                variables = (entry / "environ").read_text(errors="replace").split("\0")
            except OSError:  # it has ended meanwhile
                continue
            ranks[int(entry.name)] = next((v[13:] for v in variables if v.startswith("HOROVOD_RANK=")), "")
        return ranks

    def wait_for(self, moment: str, draw: random.Random) -> bool:
        """Wait until it is time to kill; False if the run has ended."""
        if moment == "start":
            return self._sleep(draw.uniform(0, START_S))
        steps = draw.randint(1, TRAINING_STEPS) if moment == "training" else 1
        while self.log.read_text(errors="replace").count(STEP) < steps:
            if not self._sleep(0.01):
                return False
        if moment == "training":
            return self._sleep(draw.uniform(0, 0.1))
        partial = self.output_dir / "checkpoints"
        while not any(partial.glob(".step-*.partial")):
            if self.process.poll() is not None:
                return False
        return self._sleep(draw.uniform(0, 0.01))

    def _sleep(self, seconds: float) -> bool:
        time.sleep(seconds)
        return self.process.poll() is None

    def kill(self, target: str, draw: random.Random) -> None:
        """kill -9."""
        ranks = sorted({rank for rank in self.processes().values() if rank})
        if target == "horovodrun" or not ranks:
            self.process.kill()
            return
        chosen = ranks if target == "all ranks" else [draw.choice(ranks)]
        for process, rank in self.processes().items():
            if rank in chosen:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def gone(self) -> bool:
        """Wait for the end of all of its processes; whether it came in time. What is left is killed."""
        end = time.monotonic() + GONE_S
        while self.process.poll() is None or self.processes():
            if time.monotonic() > end:
                for process in self.processes():
                    os.kill(process, signal.SIGKILL)
                self.process.wait()
                return False
            time.sleep(0.05)
        return True


def outcome(output_dir: Path) -> tuple[list[list], dict[str, bytes]]:
    """What must not depend on kills: the own values of each line of metrics.jsonl, and the last checkpoint's files."""
    text = (output_dir / "metrics.jsonl").read_text().splitlines()
    values = [list(takewhile(lambda item: item[0] != "rows_per_s", json.loads(line).items())) for line in text]
    newest = max((output_dir / "checkpoints").glob("step-*"))
    return values, {str(path.relative_to(newest)): path.read_bytes() for path in newest.rglob("*.safetensors")}


def differences(
    actual: tuple[list[list], dict[str, bytes]], expected: tuple[list[list], dict[str, bytes]]
) -> list[str]:
    """What is not the same."""
    lines_differ = sum(a != b for a, b in zip(actual[0], expected[0], strict=False))
    lines_differ += abs(len(actual[0]) - len(expected[0]))
    texts = [f"{lines_differ} of {len(expected[0])} lines of metrics.jsonl"] if lines_differ else []
    return texts + [name for name in expected[1] if actual[1].get(name) != expected[1][name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the run (default: 60 a kill)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the kills (default: %(default)s)")
    add_overrides(parser, "exchange.method=onebit_adam")
    arguments = parser.parse_args()
    steps = arguments.steps or 60 * arguments.kills
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        directory = Path(scratch)
        make_input(directory, steps)
        undisturbed = Attempt(directory, directory / "undisturbed", arguments.ranks, arguments.overrides)
        if undisturbed.process.wait() != 0:
            print(undisturbed.log.read_text(errors="replace"), file=sys.stderr)
            return 1
        expected = outcome(directory / "undisturbed")
        shutil.rmtree(directory / "undisturbed")
        print(f"undisturbed run of {steps} steps on {arguments.ranks} ranks done; killing", file=sys.stderr, flush=True)
        return soak(directory, arguments.ranks, arguments.overrides, arguments.kills, draw, expected)


def soak(directory: Path, ranks: int, overrides: list[str], kills: int, draw: random.Random, expected) -> int:
    """Kill, resume, compare; print the table."""
    counts: dict[tuple[str, str], Counter] = {(t, m): Counter() for t in TARGETS for m in MOMENTS}
    output_dir = directory / "disturbed"
    plan = [key for _ in range(-(-kills // len(counts))) for key in draw.sample(list(counts), len(counts))][:kills]
    done = 0
    for target, moment in plan:
        attempt = Attempt(directory, output_dir, ranks, overrides)
        if not attempt.wait_for(moment, draw):
            break  # it came to its end, or failed
        attempt.kill(target, draw)
        done += 1
        count = counts[target, moment]
        count["kills"] += 1
        count["left behind"] += not attempt.gone()
        count["resumed"] += attempt.said("resuming from")
        count["inside a save"] += any(output_dir.glob("checkpoints/.step-*.partial"))
        count["damaged"] += attempt.said("is damaged")
        newest = max(output_dir.glob("checkpoints/step-*"), default=Path("none"))
        print(
            f"kill {done} of {kills}: {target}, {moment}; newest checkpoint {newest.name}", file=sys.stderr, flush=True
        )
    last = Attempt(directory, output_dir, ranks, overrides)
    if last.process.wait() != 0 or not last.gone():
        print(last.log.read_text(errors="replace"), file=sys.stderr)
        return 1
    differing = differences(outcome(output_dir), expected)
    headings = ("kills", "inside a save", "resumed", "damaged", "left behind")
    rows = [
        (f"{target}, {moment}", *(str(count[name]) for name in headings)) for (target, moment), count in counts.items()
    ]
    total = sum(counts.values(), Counter())
    print(lines([("killed", *headings), *rows, ("all", *(str(total[name]) for name in headings))]))
    print(f"differences from the undisturbed run: {'; '.join(differing) or 'none'}")
    return 1 if differing or done < kills or total["left behind"] or total["damaged"] else 0


if __name__ == "__main__":
    sys.exit(main())
