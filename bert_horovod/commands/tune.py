"""Find the settings of [execution] that are fastest on this machine, by measuring real steps on real rows.

bert-horovod tune --recipe F --data_dir D --output tuned.toml                     one process
bert-horovod tune --recipe F --data_dir D -np 8 -hostfile hosts                   many ranks, which it starts itself
bert-horovod pretrain --recipe F --data_dir D --tuned tuned.toml ...              a run with these settings

It tries values of micro_batch, xla, recompute, threads and, if ranks wait for sums, bucket_bytes and reduction.
Candidates that cannot fit into memory or cannot win are not tried. If a
candidate runs out of memory, crashes or takes too long, the search goes on without it. The best ones are measured again
in turns. The phase that takes longest is measured; the settings must work in the other phases too. They change the
numbers of a run by rounding at most. docs/tune.md says more.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import RECIPE, add_hosts, add_overrides, given_hosts, require_least
from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.recipe_files.tuned import fragment
from bert_horovod.storage.writing import write_output

if TYPE_CHECKING:
    from bert_horovod.measuring.tuning.candidates import Machine
    from bert_horovod.measuring.tuning.search import Found
    from bert_horovod.measuring.tuning.tuner import Question

_MEMORY_SHARE = 0.95  # of the memory that the kernel has available: ranks on a CPU may take so much


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help=RECIPE)
    parser.add_argument(
        "--data_dir", required=True, type=Path, metavar="DIR", help="token store, made by: bert-horovod prepare"
    )
    parser.add_argument("--index_dir", type=Path, metavar="DIR", help="where row indices go if the store is read-only")
    parser.add_argument(
        "-np", type=int, metavar="N", dest="ranks", help="ranks (default: all slots of the hosts, or 1)"
    )
    add_hosts(parser)
    add_overrides(parser, "phase.0.global_batch=64")
    parser.add_argument("--output", type=Path, metavar="FILE.toml", help="write the settings to this file, for --tuned")
    parser.add_argument("--phase", type=int, metavar="N", help="phase to measure (default: the one that takes longest)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory that a rank may take, as 16GiB (default: what is available now)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        metavar="X",
        help="timed seconds for each candidate (default: %(default)s)",
    )
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="X", help="most seconds for a candidate (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the settings as TOML")


def run(arguments: argparse.Namespace) -> None:
    """Search, print a line for each trial on standard error, then print the settings."""
    from bert_horovod.batches.special_tokens import check_vocabulary
    from bert_horovod.corpus.store import open_store
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.tuning.candidates import first_settings, resolved
    from bert_horovod.measuring.tuning.prediction import longest_phase
    from bert_horovod.measuring.tuning.tuner import Question, tune
    from bert_horovod.training.console import duration

    _check_flags(arguments)
    recipe, machine, facts = load_recipe(arguments.recipe, arguments.overrides), *_machine(arguments)
    if arguments.phase is not None and not 0 <= arguments.phase < len(recipe.phase):
        raise UserError(f"--phase {arguments.phase}: the recipe has phases 0 to {len(recipe.phase) - 1}")
    for phase in recipe.phase:
        derive(recipe, phase, machine.world_size)  # refuses a batch that the ranks cannot share, before anything runs
    store = open_store(arguments.data_dir)
    check_vocabulary(recipe, store)
    question = Question(
        recipe=recipe,
        recipe_file=arguments.recipe,
        overrides=tuple(arguments.overrides),
        data_dir=arguments.data_dir,
        index_dir=arguments.index_dir,
        phase=longest_phase(recipe) if arguments.phase is None else arguments.phase,
        machine=machine,
        host_flags=_host_flags(arguments),
        memory_bytes=_memory_bytes(arguments, machine, facts["gpus"]),
        seconds=arguments.seconds,
        limit_s=arguments.limit,
    )
    first, begun = first_settings(recipe, machine), time.monotonic()
    best = tune(question, store, _say)
    search_s = time.monotonic() - begun
    over = "".join(f", {number} {reason}" for reason, number in best.passed_over.items())
    _say(f"{best.tried} candidates measured{over}; {duration(search_s)}")
    text = fragment(best.settings, _comments(question, best, facts))
    if arguments.output:
        write_output(arguments.output, text)
    if arguments.json:
        changed = resolved(best.settings, machine) != resolved(first, machine)
        summary = {"phase": question.phase, "search_s": search_s, "changed": changed}
        print(json.dumps(dataclasses.asdict(best) | summary))
    else:
        print(text, end="")


def _comments(question: "Question", best: "Found", facts: dict[str, Any]) -> list[str]:
    """The comment lines at the top of the TOML fragment."""
    machine = question.machine
    devices = facts["gpus"][0] if facts["gpus"] else f"{facts['processor']}, {machine.cores} cores"
    gain = f"{best.gain:.3f} times those of the recipe as it was" if best.gain else "the recipe as it was gave none"
    name = question.recipe_file.name
    return [
        f"bert-horovod tune: {name}, phase {question.phase}, {machine.world_size} rank(s), {devices}",
        f"{best.rows_per_s:.4g} rows/s; {gain}",
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _check_flags(arguments: argparse.Namespace) -> None:
    from bert_horovod.collectives.launched import launch
    from bert_horovod.commands.shared.output_flags import require_output_file

    if launch().size > 1:
        raise UserError("tune starts the ranks itself: run it once, with -np N and -hostfile F")
    require_least("-np", arguments.ranks)
    for name in ("seconds", "limit"):
        if not 0 < getattr(arguments, name) < math.inf:
            raise UserError(f"--{name} {getattr(arguments, name):g}: expected a number above 0")
    if arguments.output:
        require_output_file(arguments)


def _machine(arguments: argparse.Namespace) -> "tuple[Machine, dict[str, Any]]":
    """The host, and the names of its processor and its GPUs."""
    from bert_horovod.cluster.doctor.facts import gpus
    from bert_horovod.cluster.launching.hostfiles import from_scheduler
    from bert_horovod.costs.gpus import compute_capability
    from bert_horovod.costs.planner import Device
    from bert_horovod.measuring.tuning.candidates import Machine
    from bert_horovod.runtime.processor import physical_cores, processor_name

    hosts = given_hosts(arguments)
    if hosts is None and (arguments.ranks or 1) > 1 and (job := from_scheduler()):  # as `launch` does
        hosts = job[0]
    slots = sum(hosts.values()) if hosts else None
    ranks = arguments.ranks or slots or 1
    if slots is not None and ranks > slots:
        raise UserError(f"-np {ranks} is more than the slots of the hosts, {slots}; give fewer ranks or more slots")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = gpus()["names"] if visible not in ("", "-1") else []
    local = min(ranks, next(iter(hosts.values()))) if hosts else ranks
    cores = len(os.sched_getaffinity(0))
    capability = compute_capability(names[0]) or Device.capability if names else None
    machine = Machine(cores, physical_cores(), ranks, local, capability)
    return machine, {"processor": processor_name(), "gpus": names}


def _host_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    flags = ("-hostfile", arguments.hostfile), ("-H", arguments.hosts), ("--ssh_port", arguments.ssh_port)
    return tuple(word for flag, value in flags if value for word in (flag, str(value)))


def _memory_bytes(arguments: argparse.Namespace, machine: "Machine", gpus: list[str]) -> int | None:
    """Memory that a rank may take; None: unknown."""
    from bert_horovod.cluster.doctor.facts import available_memory_bytes
    from bert_horovod.costs.gpu_memory import allocatable_bytes
    from bert_horovod.costs.gpus import data_sheet
    from bert_horovod.measuring.largest_micro_batch import parse_bytes

    if arguments.memory:
        return parse_bytes(arguments.memory, "--memory")
    if machine.capability:
        gpu = data_sheet(gpus[0])
        return int(allocatable_bytes(gpu.memory.gib * 2**30, gpus[0])) if gpu else None
    return int(_MEMORY_SHARE * available_memory_bytes() / machine.local_size)
