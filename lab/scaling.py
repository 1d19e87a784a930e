#!/usr/bin/env python3
"""What more hosts are worth, beside other programs, on a cluster in a box with links of a known rate. Needs root.

python lab/scaling.py                                      BERT-small, 1, 2 and 4 hosts, 1 Gb/s and 100 Mb/s
python lab/scaling.py --hosts 2 --link 1gbit --micro_batches 4 --peer none --rounds 3
python lab/scaling.py --compute real --micro_batches 1 --micro_batches 4

The hosts share this machine's cores, so their compute must not depend on how many they are. --compute delay: all
contestants sleep, for forward, each layer's backward and the update, what our step took on one core over --speed,
and give out gradients of the real shapes as they would come. What is done to gradients themselves (adding up, norm,
casts) is real. --compute real: ours alone, one thread a host, each host on
a core of its own. Peers are this package's parameters under plain Horovod (its tape, its defaults) and Hugging Face's
BERT in PyTorch's DistributedDataParallel over Gloo; with several micro-batches both reduce once a step.

A contestant is started anew for each line and round, in turn with the others; figures are medians over rounds.
Seconds are of an optimizer step of K micro-batches. compute s is a step without communication, in the same process;
exposed s is what communication adds to it. Efficiency is rows/s a host over rows/s of one host alone. link use is what
a rank sends in a ring all-reduce of the gradients, over the step and the link's rate. One that fails is named on
standard error and left out.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides, require_least
from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import SIZES, describe_recipe, size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.tables import table
from lab.cluster import bits_per_s, cluster, why_not
from lab.contestants import METHODS, PEERS, WIRES, Cell, command, expected, figures, groups, run, sizes
from lab.rounds import PROJECT, in_turn, path, printed, reported, say

HOSTS, LINKS, MICRO_BATCHES = {"delay": [1, 2, 4], "real": [1, 2]}, ["1gbit", "100mbit"], [1, 4, 16]
START_S = 600  # most seconds that ranks on shared cores start and compile
PERCENT = "{:.1%}".format
COLUMNS = {
    "compute_s": ("compute s", "{:.4g}".format),
    "exposed_s": ("exposed s", "{:.3f}".format),
    "efficiency": ("efficiency", PERCENT),
    "link_use": ("link use", PERCENT),
}


def line(cell: Cell, rounds: list[dict[str, float]], rows: int, alone_rows_per_s: float | None) -> dict[str, Any]:
    """A line of the table, from the `figures` of each round; `rows` are a micro-batch's.

    `alone_rows_per_s`: the same program's on one host; None if nobody measured it.
    """

    def median(key: str) -> float:
        return statistics.median(each[key] for each in rounds)

    step_s = median("step_s")
    rate = rows * cell.micro_batches * cell.hosts / step_s
    row = {
        "configuration": str(cell),
        **cell._asdict(),
        "step_s": step_s,
        "compute_s": median("compute_s"),
        "rows_per_s": rate,
        "efficiency": 1.0,
    }
    if cell.link:
        row |= {
            "efficiency": rate / cell.hosts / alone_rows_per_s if alone_rows_per_s else None,
            "exposed_s": statistics.median(each["step_s"] - each["compute_s"] for each in rounds),
            "wire_bytes": median("wire_bytes"),
            "link_use": median("wire_bytes") * 8 / step_s / bits_per_s(cell.link),
        }
    return row


def measure(arguments: argparse.Namespace, recipe: Recipe, profile: dict) -> Iterator[list[dict[str, Any]]]:
    """The lines, a group's at once as soon as it is measured."""
    asked = list(groups(arguments))
    plan = {cell: expected(cell, arguments, profile, recipe) for group in asked for cell in group}
    total_s = arguments.rounds * sum(seconds for _, seconds in plan.values())
    say(f"{arguments.rounds * len(plan)} runs, about {total_s / 60:.0f} min")
    alone: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as scratch, cluster(max(arguments.hosts), arguments.link[0]) as box:
        delays = None
        if arguments.compute == "delay":
            delays = Path(scratch) / "profile.json"
            delays.write_text(json.dumps(profile))
        for group in asked:
            for host in box.hosts:
                box.shape(host, group[0].link or arguments.link[0])

            def measured(cell: Cell, _: int) -> dict[str, float]:
                steps, seconds = plan[cell]
                return figures(run(box, command(cell, arguments, steps, delays), START_S + 10 * seconds))

            lines = []
            for cell, taken in in_turn(group, arguments.rounds, measured).items():
                key = (cell.program, cell.micro_batches)
                lines.append(line(cell, taken, arguments.rows, alone.get(key)))
                if not cell.link:
                    alone[key] = lines[-1]["rows_per_s"]
            yield lines


def profile_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """How long the parts of a step take: --delay's, else measured now."""
    if arguments.delay:
        return json.loads(arguments.delay.read_text())
    say("measuring our step on one core, to know what compute takes (a minute)")
    words = ["--model", arguments.model, "--steps", 5]
    settings = [f"phase.0.global_batch={arguments.rows}", "execution.threads=1", *sizes(arguments)]
    for override in [*arguments.overrides, *settings]:
        words += ["--set", override]
    core = min(os.sched_getaffinity(0))
    ours = printed(["taskset", "-c", core, sys.executable, PROJECT / "lab" / "delayed.py", "measure", *words])
    speed = arguments.speed if arguments.compute == "delay" else 1
    delays = json.loads(ours.splitlines()[-1])

    def scaled(seconds: float) -> float:
        return max(0.0, seconds) / speed  # differences of clocks: in toy models some are negative

    return {
        part: list(map(scaled, value)) if isinstance(value, list) else scaled(value) for part, value in delays.items()
    }


def heading(arguments: argparse.Namespace, recipe: Recipe, profile: dict) -> str:
    """What was measured and how compute was held equal."""
    described = describe_recipe(recipe).rsplit(", XLA", 1)[0] + " a micro-batch"
    cores = len(os.sched_getaffinity(0))
    if arguments.compute == "real":
        return f"{described}; rounds: {arguments.rounds}\ncompute: real, one thread a host, hosts on cores of their own"
    source = str(arguments.delay) if arguments.delay else f"one core's seconds / {arguments.speed:g}"
    layers = ", ".join(f"{seconds:.3g}" for seconds in profile["layers_s"])
    return (
        f"{described}; rounds: {arguments.rounds}; all hosts on {cores} cores\n"
        f"compute: delays, {source}: forward {profile['forward_s']:.3g}, backward of head {profile['head_s']:.3g}, "
        f"layers {layers}, embeddings {profile['embeddings_s']:.3g}; update {profile['update_s']:.3g}"
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def repeatable(flag: str, usual: str, **options: Any) -> None:
        parser.add_argument(flag, action="append", help=f"repeatable (default: {usual})", **options)

    parser.add_argument("--model", choices=tuple(SIZES), default="small", help="(default: %(default)s)")
    parser.add_argument("--rows", type=int, help="of a micro-batch (default: the model's usual)")
    parser.add_argument("--length", type=int, help="positions of a row (default: the model's usual)")
    repeatable("--hosts", "1 2 4; real: 1 2", type=int)
    repeatable("--link", " ".join(LINKS), metavar="RATE")
    repeatable("--micro_batches", "1 4 16 a step", type=int)
    repeatable("--wire", "float32 float16", choices=sorted({wire for wires in WIRES.values() for wire in wires}))
    repeatable("--method", "none; of ours, beside the wires", choices=tuple(METHODS))
    parser.add_argument("--peer", choices=("all", "none", *PEERS), help="(default: all; real: none)")
    parser.add_argument("--compute", choices=tuple(HOSTS), default="delay", help="(default: %(default)s)")
    parser.add_argument("--delay", type=Path, metavar="FILE", help="what lab/delayed.py printed (default: measure)")
    parser.add_argument("--speed", type=float, default=20.0, help="of a device over one core's (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, help="timed in a run (default: as --seconds says)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run's timed steps (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args(argv)
    size = SIZES[arguments.model]
    for name, default in (
        ("rows", size.rows),
        ("length", size.length),
        ("hosts", HOSTS[arguments.compute]),
        ("link", LINKS),
        ("micro_batches", MICRO_BATCHES),
        ("wire", ["float32", "float16"]),
        ("peer", "all" if arguments.compute == "delay" else "none"),
    ):
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    """Raise UserError for a value that cannot be."""
    for name in ("hosts", "micro_batches", "rounds", "steps", "rows"):
        given = getattr(arguments, name)
        for number in given if isinstance(given, list) else [given]:
            require_least(f"--{name}", number)
    for name in ("seconds", "speed"):
        if not getattr(arguments, name) > 0:
            raise UserError(f"--{name} {getattr(arguments, name)}: expected more than 0")
    for rate in arguments.link:
        try:
            bits_per_s(rate)
        except ValueError as error:
            raise UserError(f"--link {error}") from error
    cores, real = len(os.sched_getaffinity(0)), arguments.compute == "real"
    if real and (arguments.delay or arguments.peer != "none"):
        raise UserError("--compute real: expected no --delay and no --peer, because peers sleep")
    if real and max(arguments.hosts) > cores:
        raise UserError(f"--hosts {max(arguments.hosts)} on {cores} cores: --compute real takes a core for each host")
    if arguments.delay and not arguments.delay.is_file():
        raise UserError(f"--delay {arguments.delay}: no such file; expected what lab/delayed.py measure prints")


@reported
def main() -> int:
    """Measure and print the table."""
    arguments = parse()
    recipe = size_recipe(arguments.model, arguments.overrides, arguments.rows, arguments.length)
    lacking = why_not() or (None if shutil.which("horovodrun", path=path()) else "horovodrun is not installed")
    if lacking:
        raise UserError(lacking)
    profile = profile_of(arguments)
    head = heading(arguments, recipe, profile)
    say(head)
    lines = []
    for rows in measure(arguments, recipe, profile):
        lines += rows
        say(table(lines, COLUMNS))  # so far: the rest may fail
    print(json.dumps({"head": head, "lines": lines}) if arguments.json else f"{head}\n\n{table(lines, COLUMNS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
