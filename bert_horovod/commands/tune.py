"""Race settings of [execution] on this machine: those given, or usual ones, in turns, by real steps on real rows.

bert-horovod tune --recipe F --data_dir D --output tuned.toml                     one process
bert-horovod tune --recipe F --data_dir D -np 8 -hostfile hosts                   many ranks, which it starts itself
bert-horovod tune --recipe F --data_dir D --try micro_batch=32 xla=layers --try micro_batch=64
bert-horovod pretrain --recipe F --data_dir D --tuned tuned.toml --output_dir O   a run with these settings

Each is measured by `bench step` in processes of its own, once in each of three rounds; what runs out of memory, crashes
or takes too long is left out. The first measurement is of the recipe as it is; then the time for all is said. The phase
that takes longest is measured; the best settings must work in the other phases too. They change the numbers of a run by
rounding at most. docs/tune.md says more.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import RECIPE, add_data_dirs, add_overrides, require_least
from bert_horovod.commands.shared.host_flags import add_hosts, given_hosts
from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import fragment, load_recipe
from bert_horovod.storage.writing import write_output

if TYPE_CHECKING:
    from bert_horovod.measuring.tuning import BestSettings, Machine, Settings

_MEMORY_SHARE = 0.95  # of the memory that the kernel has available: ranks on a CPU may take so much


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help=RECIPE)
    add_data_dirs(parser)
    parser.add_argument("--index_dir", type=Path, metavar="DIR", help="where row indices go if the store is read-only")
    parser.add_argument(
        "-np", type=int, metavar="N", dest="ranks", help="ranks (default: all slots of the hosts, or 1)"
    )
    add_hosts(parser)
    add_overrides(parser, "phase.0.global_batch=64")
    parser.add_argument(
        "--try",
        nargs="+",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="tries",
        help="settings of [execution] that race together, as in --try micro_batch=32 xla=layers; repeatable "
        "(default: usual ones)",
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="timed steps of each, in each round (default: %(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="X", help="most seconds for a measurement (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.toml", help="write the settings to this file, for --tuned")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the settings as TOML")


def run(arguments: argparse.Namespace) -> None:
    """Race, print a line for each measurement on standard error, then print the settings."""
    from bert_horovod.batches.layout import check_vocabulary
    from bert_horovod.batches.text.mixture import check_mixtures
    from bert_horovod.corpus.stores import open_stores
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.tuning import ROUNDS, Race, longest_phase, usual_settings
    from bert_horovod.wording import duration

    _check_flags(arguments)
    recipe, machine, facts = load_recipe(arguments.recipe, arguments.overrides), *_machine(arguments)
    contestants = [{}, *(_settings(words, arguments) for words in arguments.tries)]
    for phase in recipe.phase:
        derive(recipe, phase, machine.world_size)  # refuses a batch that the ranks cannot share, before anything runs
    stores = open_stores(arguments.data_dir)
    check_mixtures(recipe, stores)
    check_vocabulary(recipe, next(iter(stores.values())))
    phase_number = longest_phase(recipe)
    if not arguments.tries:
        contestants = usual_settings(recipe, phase_number, machine)
    begun, measured = time.monotonic(), 0

    def say(text: str, left: int) -> None:
        nonlocal measured
        measured += 1
        left_s = left * (time.monotonic() - begun) / measured
        _say(f"{measured:3}  {text}; {'at most ' + duration(left_s) + ' left' if left else 'done'}")

    race = Race(
        contestants,
        phases=len(recipe.phase),
        phase=phase_number,
        launch=_launch_words(arguments, machine),
        bench=_bench_words(arguments, machine),
        steps=arguments.steps,
        limit_s=arguments.limit,
        say=say,
    )
    _say(
        f"{len(contestants)} settings in {ROUNDS} rounds, phase {phase_number}, {machine.world_size} rank(s); "
        "the recipe as it is comes first, and tells how long all will take"
    )
    with _terminated_as_interrupted():
        best = race.run()
    text = fragment(best.settings, _comments(arguments, best, machine, facts))
    if arguments.output:
        write_output(arguments.output, text)
    summary = {"phase": phase_number, "search_s": time.monotonic() - begun}
    print(json.dumps(best._asdict() | summary) if arguments.json else text, end="\n" if arguments.json else "")


def _settings(words: list[str], arguments: argparse.Namespace) -> "Settings":
    """The settings of a --try; raises UserError."""
    keys = [word.partition("=")[0].removeprefix("execution.") for word in words]
    if any("." in key for key in keys) or not all("=" in word for word in words):
        raise UserError(f"--try {' '.join(words)}: expected settings of [execution], as in micro_batch=32 xla=layers")
    overrides = [f"execution.{word.removeprefix('execution.')}" for word in words]
    tried = load_recipe(arguments.recipe, [*arguments.overrides, *overrides])
    return {key: getattr(tried.execution, key) for key in keys}


def _comments(
    arguments: argparse.Namespace, best: "BestSettings", machine: "Machine", facts: dict[str, Any]
) -> list[str]:
    """The comment lines at the top of the TOML fragment."""
    devices = facts["gpus"][0] if facts["gpus"] else f"{facts['processor']}, {machine.cores} cores"
    gain = "the recipe as it is gave none"
    if not best.settings:
        gain = "the recipe as it is"
    elif best.gains:
        least, most = min(best.gains), max(best.gains)
        gain = f"{statistics.median(best.gains):.3f} times the recipe as it is (rounds: {least:.3f} to {most:.3f})"
        gain += "; no more than noise" if least <= 1 else ""
    second = "" if best.margin is None else f"; {best.margin:.3f} times the second best"
    return [
        f"bert-horovod tune: {arguments.recipe.name}, {machine.world_size} rank(s), {devices}",
        f"{best.rows_per_s:.4g} rows/s; {gain}{second}",
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Inside this context SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    handler_before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler_before)


def _check_flags(arguments: argparse.Namespace) -> None:
    from bert_horovod.collectives.launched import launch
    from bert_horovod.commands.shared.output_flags import require_output_file

    if launch().size > 1:
        raise UserError("tune starts the ranks itself: run it once, with -np N and -hostfile F")
    require_least("-np", arguments.ranks)
    require_least("--steps", arguments.steps)
    if not 0 < arguments.limit < math.inf:
        raise UserError(f"--limit {arguments.limit:g}: expected a number above 0")
    if arguments.output:
        require_output_file(arguments)


def _machine(arguments: argparse.Namespace) -> "tuple[Machine, dict[str, Any]]":
    """The host, and the names of its processor and its GPUs."""
    from bert_horovod.cluster.doctor.facts import gpus
    from bert_horovod.cluster.launching.hostfiles import from_scheduler
    from bert_horovod.measuring.tuning import Machine
    from bert_horovod.runtime.host import physical_cores, processor_name

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
    machine = Machine(cores, physical_cores(), bool(names), ranks, local)
    return machine, {"processor": processor_name(), "gpus": names}


def _launch_words(arguments: argparse.Namespace, machine: "Machine") -> tuple[str, ...]:
    if machine.world_size == 1:
        return ()
    flags = ("-hostfile", arguments.hostfile), ("-H", arguments.hosts), ("--ssh_port", arguments.ssh_port)
    given = [word for flag, value in flags if value for word in (flag, str(value))]
    return "launch", "-np", str(machine.world_size), *given, "--"


def _bench_words(arguments: argparse.Namespace, machine: "Machine") -> tuple[str, ...]:
    from bert_horovod.cluster.doctor.facts import available_memory_bytes

    words = ["--recipe", str(arguments.recipe)]
    words += [word for named in arguments.data_dir for word in ("--data_dir", str(named))]
    words += ["--index_dir", str(arguments.index_dir)] if arguments.index_dir else []
    if not machine.gpu:
        words += ["--memory", str(int(_MEMORY_SHARE * available_memory_bytes() / machine.local_size))]
    return *words, *(word for override in arguments.overrides for word in ("--set", override))
