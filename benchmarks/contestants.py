"""A contestant of benchmarks/scaling.py: how it is started on the hosts of a cluster in a box, and what it answers."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cluster import INTERFACE, Cluster, bits_per_s
from bert_horovod.costs.link import NUMBER_BYTES
from bert_horovod.errors import RunError
from bert_horovod.recipe.sections import Recipe

PROJECT = Path(__file__).resolve().parents[1]
PEERS = {"horovod": "plain_horovod", "ddp": "distributed_data_parallel"}
NAMES = {"ours": "bert-horovod", "horovod": "plain Horovod", "ddp": "DistributedDataParallel"}
WIRES = {"ours": ("float32", "float16", "int8"), "horovod": ("float32",), "ddp": ("float32", "float16")}
MODES = {"ours": (3, 2), "horovod": (2, 1), "ddp": (2, 1)}  # kinds of step that a run times, and those that communicate
WARM_UP = {"ours": 2, "horovod": 1, "ddp": 1}  # steps of each kind that are not timed
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
                    for wire in (arguments.wire if link else arguments.wire[:1])
                    if wire in WIRES[program] or not link
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
    words = ["--model", arguments.model, "--rows", arguments.rows, "--length", arguments.length, "--steps", steps]
    for override in arguments.overrides:
        words += ["--set", override]
    if profile:
        words += ["--delay", profile]
    if cell.program == "ours":
        program = ["-m", "bert_horovod", "bench", "comm", "--json"]
        rows = arguments.rows * cell.micro_batches * cell.hosts
        for setting in (f"phase.0.global_batch={rows}", f"numerics.wire={cell.wire}", "execution.threads=1"):
            words += ["--set", setting]
    else:
        program = [PROJECT / "benchmarks" / "peers" / f"{PEERS[cell.program]}.py"]
        wire = cell.wire if cell.wire in WIRES[cell.program] else WIRES[cell.program][0]
        words += ["--micro_batches", cell.micro_batches, "--wire", wire]
        if arguments.data_dir:
            words += ["--data_dir", arguments.data_dir.absolute()]
    return [*start, sys.executable, *map(str, program), *map(str, words)]


def run(box: Cluster, words: list[str], timeout: float) -> dict[str, Any]:
    """The JSON object that rank 0 prints; raises RunError with its last words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PATH": path()}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    try:
        done = box.run("node1", words, timeout=timeout, env=environment, cwd=PROJECT)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"no answer in {timeout:.0f} s") from error
    for text in done.stdout.splitlines():
        if text.startswith(("{", RANK_0 + "{")):
            return json.loads(text.removeprefix(RANK_0))
    said = done.stderr.strip().splitlines()
    last = [text for text in said if text.startswith("[0]")] or said
    raise RunError(f"ended with {done.returncode}: " + "\n  ".join(last[-3:]))


def figures(found: dict[str, Any]) -> dict[str, float]:
    """What counts of a contestant's answer, in seconds and bytes; ours has a step of each kind."""
    steps = found["step_s"]
    if not isinstance(steps, dict):
        return {"step_s": steps, "compute_s": found["compute_s"], "wire_bytes": found["wire_bytes"]}
    step = steps["overlapped"] if steps.get("overlapped") is not None else steps["off"]  # off: a world of one
    optional = {"held_back_s": steps.get("held_back"), "predicted_s": found.get("predicted_s")}
    return {"step_s": step, "compute_s": steps["off"], "wire_bytes": found.get("wire_bytes", 0)} | optional


def expected(cell: Cell, arguments: argparse.Namespace, profile: dict, recipe: Recipe) -> tuple[int, float]:
    """How many steps a run should time, and how many seconds the run may take then."""
    model = recipe.model
    hidden, inner = model.hidden_size, model.intermediate_size
    parameters = model.vocab_size * hidden + model.num_hidden_layers * (4 * hidden**2 + 2 * hidden * inner)
    passes = profile["forward_s"] + profile["head_s"] + sum(profile["layers_s"]) + profile["embeddings_s"]
    compute_s = cell.micro_batches * passes + profile["update_s"]
    wire_s = 0.0
    if cell.link:
        sent = 2 * (cell.hosts - 1) / cell.hosts * parameters * NUMBER_BYTES[cell.wire]
        wire_s = sent * 8 / bits_per_s(cell.link)
    all_steps, communicating = MODES[cell.program] if cell.link else (1, 0)
    together_s = all_steps * compute_s + communicating * wire_s
    steps = arguments.steps or max(1, min(10, round(arguments.seconds / together_s)))
    return steps, 5 + 2.5 * cell.hosts + (steps + WARM_UP[cell.program]) * together_s


def path() -> str:
    """Where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
