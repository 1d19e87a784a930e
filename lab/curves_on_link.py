#!/usr/bin/env python3
"""Whether curves hold on a real link: the first steps of some, on two hosts in a box. Needs root.

python lab/curves_on_link.py --data_dir STORE --work DIR --steps 240 --curve float16 --curve int8
python lab/curves_on_link.py --data_dir STORE --work DIR --start C --curve "continued, DreamDDP, 8"
python lab/curves_on_link.py ... --curve "continued, 1-bit Adam" --resume RUN --steps 520

lab/curves.py trains over loopback and multiplies steps by the seconds that lab/scaling.py measured. Here
`horovodrun` starts the same recipe on two hosts that are joined by a link of --link, each host's one thread on a core
of its own. Apart is the largest difference from the kept curve's losses; sent is what the kernel counted at a host's
network card, over what the run's metrics say that a rank sends. Step s is the mean of all steps but the first 20, with
evaluations left out. A curve's steps are rounded up to a step at which it may stop. With --resume, a copy of a curve's
directory as lab/curves.py left it at a checkpoint, only the steps after that are trained on the link: a dense
stage need not be trained there too.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.reporting.tables import table
from bert_horovod.runs.checkpoint import paths, step_of
from lab.cluster import INTERFACE, Cluster, bits_per_s, cluster, why_not
from lab.contestants import PINNED, path
from lab.curve_recipes import CURVES, kept
from lab.curves import add_training, check_start, keys, training_words
from lab.rounds import PROJECT, say

UNTIMED = 20  # steps, which compile and measure buckets
COLUMNS = {
    "steps": ("steps", "{:,}".format),
    "loss": ("last loss", "{:.4f}".format),
    "apart": ("apart, nats", "{:.1e}".format),
    "step_s": ("step s", "{:.3f}".format),
    "wire_gb": ("GB sent by a rank", "{:.2f}".format),
    "counted": ("counted / said", "{:.3f}".format),
}


def stop_at(name: str, steps: int) -> int:
    """The first step from `steps` on at which ranks are equal, so that a run may stop there."""
    agreement = CURVES[name].recipe.exchange.agreement
    return math.ceil(steps / agreement) * agreement


def compared(metrics: list[dict[str, Any]], first: int, curve: list[list[float]], counted_bytes: int) -> dict[str, Any]:
    """A line of the table.

    Args:
        metrics: the lines of metrics.jsonl.
        first: the step after which the link was used.
        curve: step and loss of the curve that was trained over loopback.
        counted_bytes: sent by the first host.
    """
    lines, kept_losses = [line for line in metrics if line["step"] > first and "loss" in line], dict(map(tuple, curve))
    ends = [first, *(line["step"] for line in lines)]
    steps = [line["step"] - before for line, before in zip(lines, ends, strict=False)]
    pairs = [(line["loss"], kept_losses[line["step"]]) for line in lines if line["step"] in kept_losses]
    if not pairs:
        raise RunError("no step of the run is in the curve that it is compared with")
    timed = [
        (count, line["step_s"]) for count, line in zip(steps, lines, strict=True) if line["step"] > first + UNTIMED
    ]
    wire_bytes = sum(count * line["wire_bytes"] for count, line in zip(steps, lines, strict=True))
    return {
        "steps": lines[-1]["step"] - first,
        "loss": lines[-1]["loss"],
        "apart": max(abs(loss - other) for loss, other in pairs),
        "step_s": sum(count * seconds for count, seconds in timed) / sum(count for count, _ in timed)
        if timed
        else None,
        "wire_gb": wire_bytes / 1e9,
        "counted": counted_bytes / wire_bytes,
    }


def train(box: Cluster, name: str, steps: int, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], int, int]:
    """The metrics of a curve's first steps, the step from which the link was used, and the first host's sent bytes."""
    with tempfile.TemporaryDirectory(dir=arguments.work) as directory:
        output, first = Path(directory) / "run", 0
        if arguments.resume:
            shutil.copytree(arguments.resume, output)
            first = step_of(paths(output)[-1].name)
        words = [sys.executable, shutil.which("horovodrun", path=path()), "--gloo", "-np", "2"]
        words += ["--network-interfaces", INTERFACE, "-H", ",".join(f"{host}:1" for host in box.hosts)]
        words += ["sh", "-c", PINNED, ",".join(map(str, sorted(os.sched_getaffinity(0))))]
        words += training_words(CURVES[name], arguments, arguments.start if CURVES[name].begin else None)
        words += ["--output_dir", output, "--max_steps", steps, "--set", "execution.threads=1"]
        environment = os.environ | {"PATH": path(), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        before = box.traffic(box.hosts[0])[0]
        done = box.run(box.hosts[0], list(map(str, words)), timeout=steps * 60 + 600, env=environment, cwd=PROJECT)
        metrics = output / "metrics.jsonl"
        if done.returncode or not metrics.is_file():
            last = "\n  ".join(done.stderr.strip().splitlines()[-5:])
            raise RunError(f"{name}: ended with {done.returncode}:\n  {last}")
        texts = metrics.read_text(encoding="utf-8").splitlines()
        return list(map(json.loads, texts)), first, box.traffic(box.hosts[0])[0] - before


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training(parser, required=True)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="a stopped run of the one --curve, to go on from")
    parser.add_argument("--link", default="100mbit", metavar="RATE", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=240, metavar="N", help="(default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: expected at least 1")
    if arguments.resume and (len(arguments.curve) != 1 or not any(arguments.resume.glob("checkpoints/step-*"))):
        parser.error(
            f"--resume {arguments.resume}: expected one --curve and the directory of its run, with a checkpoint"
        )
    try:
        bits_per_s(arguments.link)
    except ValueError as error:
        parser.error(f"--link {error}")
    check_start(parser, arguments)
    return arguments


def main() -> int:
    """Train the first steps of each curve and print the table."""
    arguments, rows = parse(), []
    try:
        lacking = why_not() or (None if shutil.which("horovodrun", path=path()) else "horovodrun is not installed")
        if lacking:
            raise UserError(lacking)
        curves, key_of = kept(), keys(arguments.curve, arguments)
        arguments.work.mkdir(parents=True, exist_ok=True)
        with cluster(2, arguments.link) as box:
            for name in arguments.curve:
                if key_of[name] not in curves:
                    raise UserError(f"--curve {name!r} is not trained yet; lab/curves.py trains it")
                steps = stop_at(name, arguments.steps)
                say(f"{name}: {steps} steps")
                metrics, first, sent = train(box, name, steps, arguments)
                rows.append({"configuration": name} | compared(metrics, first, curves[key_of[name]]["loss"], sent))
                say(table(rows, COLUMNS))  # so far: the rest may fail
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(json.dumps(rows) if arguments.json else table(rows, COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
