"""A contestant of lab/scaling.py: how it is started on the hosts of a cluster in a box, and what it answers."""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.errors import RunError
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from lab.cluster import INTERFACE, Cluster, bits_per_s
from lab.rounds import PROJECT, path, variables

PEERS = {"horovod": "plain_horovod", "ddp": "distributed_data_parallel"}
NAMES = {"ours": "bert-horovod", "horovod": "plain Horovod", "ddp": "DistributedDataParallel"}
WIRES = {
    "ours": ("float32", "float16", "int8"),
    "horovod": ("float32",),
    "ddp": ("float32", "float16", "powersgd", "powersgd4"),
}
WARM_UP = {"ours": 2, "horovod": 1, "ddp": 1}  # steps of each kind that are not timed


class Method(NamedTuple):
    """An exchange that sends less, as it is after its dense stage."""

    settings: tuple[str, ...]
    number_bytes: float  # sent in a step, of each number of the model, about
    steps: int = 1  # timed: a multiple of its interval
    warm_up: int = 2


_COMPRESSED = ("exchange.dense=0", "phase.0.warmup=0")
_LOCAL = ("execution.consistency_steps=0", "execution.evaluate_steps=0", "execution.checkpoint_steps=960")
_LOCAL += ("phase.0.steps=960",)
_LAMB = ("exchange.method=onebit_lamb", "optimizer.name=lamb")
# The learning rate falls so fast that the longest period is reached in the warm-up.
_ZERO_ONE = ("exchange.method=zero_one_adam", "exchange.interval=16", *_COMPRESSED, *_LOCAL, "phase.0.decay_power=1000")
_POWER_SGD = ("exchange.method=powersgd", *_COMPRESSED)
_PARAMETERS, _MT_DAO = (("exchange.method=" + name, *_LOCAL) for name in ("parameters", "mt_dao"))
# Without its full averages, which are as rare as one likes.
_DREAM_DDP = ("exchange.method=dreamddp", "exchange.interval=8", *_LOCAL, "exchange.full_interval=960")
METHODS = {
    "1-bit Adam": Method(("exchange.method=onebit_adam", *_COMPRESSED), 0.27, steps=4),
    "1-bit LAMB": Method((*_LAMB, *_COMPRESSED), 0.27, steps=4),
    "0/1 Adam, 16": Method(_ZERO_ONE, 0.02, 16, 16),
    "largest chunks, 0.1": Method(("exchange.method=largest_chunks", *_COMPRESSED), 0.4, steps=4),
    "PowerSGD, 1": Method((*_POWER_SGD, "exchange.rank=1"), 0.02, 4),
    "PowerSGD, 4": Method(_POWER_SGD, 0.06, 4),
    "PowerSGD, 16": Method((*_POWER_SGD, "exchange.rank=16"), 0.2, 4),
    "PowerSGD, 4, words in chunks": Method((*_POWER_SGD, "exchange.words=largest_chunks"), 0.3, 4),
    "local AdamW, 8": Method((*_PARAMETERS, "exchange.interval=8"), 1.5, 8, 8),
    "local AdamW, 32": Method((*_PARAMETERS, "exchange.interval=32"), 0.4, 32, 32),
    "MT-DAO, 32": Method((*_MT_DAO, "exchange.interval=32"), 0.4, 32, 32),
    "DreamDDP, 8": Method(_DREAM_DDP, 0.5, 8, 8),
}
for _wire, _interval, _fragments in (("float16", 30, 6), ("int8", 30, 6), ("float16", 100, 10)):
    # Fragments are sent without a pause. The first sum of each one compiles its outer step.
    _delay = _interval // _fragments
    _sizes = (f"exchange.interval={_interval}", f"exchange.fragments={_fragments}", f"exchange.delay={_delay}")
    METHODS[f"streaming DiLoCo, {_interval}" + ", int8" * (_wire == "int8")] = Method(
        ("exchange.method=diloco", *_sizes, f"numerics.wire={_wire}", *_LOCAL),
        NUMBER_BYTES[_wire] / _interval,
        steps=_interval,
        warm_up=_interval + _delay,
    )
RANK_0 = "[0]<stdout>:"  # what horovodrun puts before its lines
# Sends a rank to the core of its number in a list: sh -c PINNED 0,1 command
PINNED = 'core=$(echo "$0" | cut -d, -f$((HOROVOD_RANK + 1))); exec taskset -c "$core" "$@"'


class Cell(NamedTuple):
    """A line of the table."""

    program: str
    wire: str
    hosts: int
    link: str | None  # None: one host has none
    micro_batches: int

    def __str__(self) -> str:
        where = f"{self.hosts} hosts, {self.link}" if self.link else "1 host"
        wire = f" {self.wire}" if self.link else ""
        return f"{where}, K {self.micro_batches}: {NAMES[self.program]}{wire}"


def groups(arguments: argparse.Namespace) -> Iterator[list[Cell]]:
    """The cells that are measured in turn; one host's, in which wires do not differ, come first."""
    programs = ["ours", *{"all": list(PEERS), "none": []}.get(arguments.peer, [arguments.peer])]
    for hosts in sorted(arguments.hosts):
        for link in arguments.link if hosts > 1 else [None]:
            for count in arguments.micro_batches:
                yield [
                    Cell(program, wire, hosts, link, count)
                    for program in programs
                    for wire in ([*arguments.wire, *(arguments.method or ())] if link else arguments.wire[:1])
                    if wire in WIRES[program] or not link or (wire in METHODS and program == "ours")
                ]


def command(cell: Cell, arguments: argparse.Namespace, steps: int, profile: Path | None) -> list[str]:
    """What starts a cell's ranks, on the first host."""
    start = []
    if cell.link:
        names = ",".join(f"node{i + 1}:1" for i in range(cell.hosts))
        start += [sys.executable, shutil.which("horovodrun", path=path()), "--gloo"]
        start += ["--network-interfaces", INTERFACE, "-np", str(cell.hosts), "-H", names]
    if arguments.compute == "real":
        start += ["sh", "-c", PINNED, ",".join(map(str, sorted(os.sched_getaffinity(0))))]
    words, settings = ["--model", arguments.model, "--steps", steps], [*arguments.overrides, *sizes(arguments)]
    if cell.program == "ours":
        program = [PROJECT / "lab" / "delayed.py", profile] if profile else ["-m", "bert_horovod", "bench", "step"]
        rows = arguments.rows * cell.micro_batches * cell.hosts
        method = METHODS.get(cell.wire)
        settings += [f"phase.0.global_batch={rows}", "execution.threads=1"]
        settings += method.settings if method else (f"numerics.wire={cell.wire}",)
        words += ["--json", "--communication", "on", "off", "--warm_up", method.warm_up if method else 1]
    else:
        program = [PROJECT / "lab" / "peers" / f"{PEERS[cell.program]}.py"]
        wire = cell.wire if cell.wire in WIRES[cell.program] else WIRES[cell.program][0]
        words += ["--micro_batches", cell.micro_batches, "--wire", wire, "--delay", profile]
    words += [word for each in settings for word in ("--set", each)]
    return [*start, sys.executable, *map(str, program), *map(str, words)]


def sizes(arguments: argparse.Namespace) -> list[str]:
    """The settings of --rows and --length."""
    return [f"execution.micro_batch={arguments.rows}", f"phase.0.sequence_length={arguments.length}"]


def run(box: Cluster, words: list[str], timeout: float) -> dict[str, Any]:
    """The JSON object that rank 0 prints; raises RunError with its last words."""
    environment = {name: value for name, value in variables().items() if not name.startswith("HOROVOD_")}
    try:
        done = box.run("node1", words, timeout=timeout, env=environment, cwd=PROJECT)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"no answer in {timeout:.0f} s") from error
    for text in done.stdout.splitlines():
        if text.startswith(("{", RANK_0 + "{")):
            return json.loads(text.removeprefix(RANK_0))
    messages = done.stderr.strip().splitlines()
    last = [text for text in messages if text.startswith("[0]")] or messages
    raise RunError(f"ended with {done.returncode}: " + "\n  ".join(last[-3:]))


def figures(printed: dict[str, Any]) -> dict[str, float]:
    """What counts of a contestant's answer, in seconds and bytes; ours has a step of each kind of communication."""
    kinds = printed.get("communication")
    compute_s = kinds["off"]["step_s"] if kinds else printed["compute_s"]
    return {"step_s": printed["step_s"], "compute_s": compute_s, "wire_bytes": printed.get("wire_bytes", 0)}


def expected(cell: Cell, arguments: argparse.Namespace, profile: dict, recipe: Recipe) -> tuple[int, float]:
    """How many steps a run should time, and how many seconds the run may take then."""
    parameters = sum(map(math.prod, pretraining_shapes(recipe.model, recipe.objective.pairs).values()))
    passes = profile["forward_s"] + profile["head_s"] + sum(profile["layers_s"]) + profile["embeddings_s"]
    compute_s = cell.micro_batches * passes + profile["update_s"]
    wire_s = 0.0
    if cell.link:
        method, wires = METHODS.get(cell.wire), NUMBER_BYTES | {"powersgd": 0.1, "powersgd4": 0.2}
        number_bytes = method.number_bytes if method else wires[cell.wire]
        sent = 2 * (cell.hosts - 1) / cell.hosts * parameters * number_bytes
        wire_s = sent * 8 / bits_per_s(cell.link)
    all_steps, communicating = (2, 1) if cell.link else (1, 0)  # with communication and without
    together_s = all_steps * compute_s + communicating * wire_s
    steps = arguments.steps or max(1, min(10, round(arguments.seconds / together_s)))
    method = METHODS.get(cell.wire) if cell.link else None
    if method:
        steps = math.ceil(steps / method.steps) * method.steps
    warm_up = method.warm_up if method else WARM_UP[cell.program]
    return steps, 5 + 2.5 * cell.hosts + (steps + warm_up) * together_s
