"""Find the settings of [execution] that are fastest on this machine, by measuring real steps on real rows.

bert-horovod tune --recipe F --data_dir D --output tuned.toml                     one process
bert-horovod tune --recipe F --data_dir D -np 8 -hostfile hosts                   many ranks, which it starts itself
bert-horovod pretrain --recipe F --data_dir D --tuned tuned.toml ...              a run with what was found

Tried are the micro-batch, what XLA compiles, recomputation, threads and, where ranks wait for sums, buckets, the way to
sum and Horovod's cycle time. What cannot fit into memory or cannot win is passed over; a candidate that runs out of
memory, crashes or takes too long is an answer, not an end. The best ones are measured again in turns. What was measured
is kept beside the row index: the same command goes on after it was stopped, and answers at once when it is done. The
phase that takes longest is measured; the others must work. Numbers stay as they are, to rounding. docs/tune.md.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import add_hosts, add_overrides
from bert_horovod.errors import UserError
from bert_horovod.recipe.loading import load_recipe, recipe_to_table, what_hash
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.tuned import execution_overrides, fragment

if TYPE_CHECKING:
    from bert_horovod.corpus.store import Store
    from bert_horovod.measuring.tuning.candidates import Machine
    from bert_horovod.measuring.tuning.learned import Learned
    from bert_horovod.measuring.tuning.search import Found
    from bert_horovod.measuring.tuning.trials import Settings, Trial

_MEMORY_SHARE = 0.95  # of what the kernel would give, that ranks may take on a CPU
_GPU_SHARE = 0.92  # of a GPU's memory, that TensorFlow can allocate
_PACKAGES = ("tensorflow", "horovod", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="recipe in TOML; see run/recipes/")
    parser.add_argument(
        "--data_dir", required=True, type=Path, metavar="DIR", help="token store, made by: bert-horovod prepare"
    )
    parser.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices and measurements go if the store is read-only"
    )
    parser.add_argument(
        "-np", type=int, metavar="N", dest="ranks", help="ranks (default: all slots of the hosts, or 1)"
    )
    add_hosts(parser)
    add_overrides(parser, "phase.0.global_batch=64")
    parser.add_argument("--output", type=Path, metavar="FILE.toml", help="write the settings there, for --tuned")
    parser.add_argument("--phase", type=int, metavar="N", help="that is measured (default: the one that takes longest)")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="that a rank may take, as 16GiB (default: what is available now, for each rank)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="X", help="of timed steps of a candidate (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=600.0,
        metavar="X",
        help="seconds that a candidate may take (default: %(default)s)",
    )
    parser.add_argument("--afresh", action="store_true", help="measure anew what was measured already")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the settings as TOML")


def run(arguments: argparse.Namespace) -> None:
    """Search, tell of each trial on standard error, print the settings."""
    from bert_horovod.batches.special_tokens import check_vocabulary
    from bert_horovod.corpus.store import open_store
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.tuning.candidates import first_settings, resolved
    from bert_horovod.measuring.tuning.learned import Learned
    from bert_horovod.measuring.tuning.prediction import longest_phase
    from bert_horovod.storage.writing import write_atomically
    from bert_horovod.training.console import duration

    _check_flags(arguments)
    recipe, machine, facts = load_recipe(arguments.recipe, arguments.overrides), *_machine(arguments)
    if arguments.phase is not None and not 0 <= arguments.phase < len(recipe.phase):
        raise UserError(f"--phase {arguments.phase}: the recipe has phases 0 to {len(recipe.phase) - 1}")
    phase = longest_phase(recipe) if arguments.phase is None else arguments.phase
    for each in recipe.phase:
        derive(recipe, each, machine.world_size)  # refuses what the ranks cannot share, before anything is run
    store = open_store(arguments.data_dir)
    check_vocabulary(recipe, store)
    memory_bytes, first = _memory_bytes(arguments, machine, facts), first_settings(recipe, machine)
    question = {"first": first, "memory": arguments.memory, "limit_s": arguments.limit}
    decided_by, begun = _decided_by(arguments, recipe, store, first, phase, facts), time.monotonic()
    with contextlib.closing(Learned(arguments.index_dir or store.path / "index", decided_by)) as learned:
        if arguments.afresh:
            learned.forget()
        found = learned.answer(question)
        if found is None:
            found = _search(arguments, recipe, store, machine, phase, memory_bytes, learned)
            learned.keep_answer(question, found)
        else:
            _say(f"measured before, and kept in {learned.path}; --afresh measures again")
    over = "".join(f", {number} {why}" for why, number in found.passed_over.items())
    _say(f"{found.tried} candidates measured{over}; {duration(time.monotonic() - begun)}")
    devices = facts["gpus"][0] if facts["gpus"] else f"{facts['processor']}, {machine.cores} cores"
    gain = f"{found.gain:.3f} times those of the recipe as it was" if found.gain else "the recipe as it was gave none"
    comments = [
        f"bert-horovod tune: {arguments.recipe.name}, phase {phase}, {machine.world_size} rank(s), {devices}",
        f"{found.rows_per_s:.4g} rows/s; {gain}",
    ]
    text = fragment(found.settings, comments)
    if arguments.output:
        write_atomically(arguments.output, text)
    if arguments.json:
        changed = resolved(found.settings, machine) != resolved(first, machine)
        print(json.dumps(dataclasses.asdict(found) | {"changed": changed, "phase": phase, "kept": str(learned.path)}))
    else:
        print(text, end="")


def _search(
    arguments: argparse.Namespace,
    recipe: Recipe,
    store: "Store",
    machine: "Machine",
    phase: int,
    memory_bytes: int | None,
    learned: "Learned",
) -> "Found":
    from bert_horovod.batches.rows import open_rows
    from bert_horovod.measuring.tuning.candidates import Candidates, first_settings
    from bert_horovod.measuring.tuning.prediction import Prediction
    from bert_horovod.measuring.tuning.search import Search
    from bert_horovod.measuring.tuning.trials import TIME_IS_UP

    numbers = range(len(recipe.phase))
    rows = [open_rows(store, recipe, i, "train", arguments.index_dir) for i in numbers]
    slots = [(each.masked_slots, each.sequences) for each in rows]
    prediction = Prediction(recipe, phase, machine.world_size, slots, memory_bytes, machine.gpu)
    trials = _Trials(arguments, machine, phase, first_settings(recipe, machine), memory_bytes, learned)
    search = Search(
        first_settings(recipe, machine),
        machine,
        Candidates(recipe, phase, machine, prediction.fits),
        prediction,
        lambda settings, number, bound_s: trials.measure(settings, phase, number, bound_s),
        lambda settings: all(
            trials.measure(settings, i, 0, 0.0).failure in ("", TIME_IS_UP) for i in numbers if i != phase
        ),
    )
    trials.count_left = search.left
    memory = "" if memory_bytes is None else f"; a rank may take {memory_bytes / 2**30:.2f} GiB"
    _say(f"measuring phase {phase} on {machine.world_size} rank(s){memory}")
    with _terminated_as_interrupted():
        return search.run()


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within, SIGTERM ends this process as Ctrl-C does: after the trial's processes."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Trials:
    """A candidate's trial: what is kept of it, or the benchmark in processes of its own."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        machine: "Machine",
        phase: int,
        first: "Settings",
        memory_bytes: int | None,
        learned: "Learned",
    ) -> None:
        self._arguments, self._machine, self._phase, self._first = arguments, machine, phase, first
        self._memory_bytes, self._learned = memory_bytes, learned
        self._walls: list[float] = []
        self._told: list[tuple] = []
        self.count_left: Callable[[], int] = lambda: 0  # trials that there may still be

    def measure(self, settings: "Settings", phase: int, number: int, bound_s: float) -> "Trial":
        """The answer that is kept, or a new one."""
        from bert_horovod.measuring.tuning.candidates import resolved
        from bert_horovod.measuring.tuning.trials import run_trial, still_holds

        key = resolved(settings, self._machine)
        trial = self._learned.trial(key, phase, number)
        kept = trial is not None and still_holds(trial, self._memory_bytes, self._arguments.limit)
        if not kept:
            words = self._words(settings, phase, bound_s)
            trial = run_trial(words, self._arguments.limit, self._memory_bytes)
            self._learned.keep(key, phase, number, trial)
            self._walls.append(trial.wall_s)
        self._tell(settings, phase, number, trial, kept)
        return trial

    def _words(self, settings: "Settings", phase: int, bound_s: float) -> list[str]:
        given, ranks = self._arguments, self._machine.world_size
        words = ["bench", "step", "--recipe", str(given.recipe), "--data_dir", str(given.data_dir), "--json"]
        words += ["--index_dir", str(given.index_dir)] if given.index_dir else []
        for override in [*given.overrides, *execution_overrides(settings)]:
            words += ["--set", override]
        words += ["--phase", str(phase), "--seconds", str(given.seconds)]
        words += ["--give_up_above", repr(bound_s)] if bound_s < math.inf else []
        if self._memory_bytes is not None and not self._machine.gpu:
            words += ["--memory", str(self._memory_bytes)]
        if ranks == 1:
            return words
        where = ["-hostfile", str(given.hostfile)] if given.hostfile else []
        where += ["-H", given.hosts] if given.hosts else []
        where += ["--ssh_port", str(given.ssh_port)] if given.ssh_port else []
        return ["launch", "-np", str(ranks), *where, "--", *words]

    def _tell(self, settings: "Settings", phase: int, number: int, trial: "Trial", kept: bool) -> None:
        from bert_horovod.training.console import duration

        if (told := (settings, phase, number)) in self._told:
            return
        self._told.append(told)
        changed = [f"{key}={value}" for key, value in settings.items() if value != self._first[key]]
        what = " ".join(changed) or "the recipe as it is"
        what += f", round {number}" if number else ""
        what += "" if phase == self._phase else f", phase {phase}"
        figures = trial.failure or f"{trial.rows_per_s:.4g} rows/s"
        took = "kept from before" if kept else duration(trial.wall_s)
        left = self.count_left() * sum(self._walls) / max(1, len(self._walls))
        after = f"; at most {duration(left)} left" if left and not kept else ""
        _say(f"{len(self._told):3}  {what}: {figures} ({took}{after})")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _check_flags(arguments: argparse.Namespace) -> None:
    from bert_horovod.collectives.launched import started_by

    if started_by().size > 1:
        raise UserError("tune starts the ranks itself: run it once, with -np N and -hostfile F")
    if arguments.ranks is not None and arguments.ranks < 1:
        raise UserError(f"-np {arguments.ranks}: expected at least 1")
    for name in ("seconds", "limit"):
        if not 0 < getattr(arguments, name) < math.inf:
            raise UserError(f"--{name} {getattr(arguments, name):g}: expected a number above 0")
    if arguments.output and not arguments.output.absolute().parent.is_dir():
        raise UserError(f"--output {arguments.output}: there is no directory {arguments.output.parent}")


def _machine(arguments: argparse.Namespace) -> "tuple[Machine, dict[str, Any]]":
    """The host, and what tells it from others."""
    from bert_horovod.cluster.doctor.facts import gpus
    from bert_horovod.cluster.launching.hostfiles import from_scheduler, parse_hosts, read_hostfile
    from bert_horovod.measuring.tuning.candidates import Machine
    from bert_horovod.runtime.processor import physical_cores, processor_name

    hosts = read_hostfile(arguments.hostfile) if arguments.hostfile else None
    hosts = parse_hosts(arguments.hosts) if arguments.hosts else hosts
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
    machine = Machine(cores, physical_cores(), ranks, local, bool(names))
    facts = {"processor": processor_name(), "gpus": names, "hosts": hosts}
    facts["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    return machine, facts | {"machine": dataclasses.asdict(machine)}


def _decided_by(
    arguments: argparse.Namespace,
    recipe: Recipe,
    store: "Store",
    first: "Settings",
    phase: int,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """What the time of a step depends on beside the settings that are tried."""
    from bert_horovod import __version__
    from bert_horovod.runtime.children import installed_version, source_hash

    horovod = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    speed = (
        "threads",
        "bucket_bytes",
        "reduction",
        "fusion_bytes",
        "cycle_time_ms",
        "hierarchical_allreduce",
        "autotune",
    )
    execution = recipe_to_table(recipe)["execution"]
    return {
        "what": what_hash(recipe),
        "execution": {name: execution[name] for name in speed if name not in first},
        "phase": phase,
        "store": store.hash,
        "seconds": arguments.seconds,
        "machine": facts,
        "environment": horovod,
        "versions": {"bert_horovod": [__version__, source_hash()]}
        | {name: installed_version(name) for name in _PACKAGES},
    }


def _memory_bytes(arguments: argparse.Namespace, machine: "Machine", facts: dict[str, Any]) -> int | None:
    """What a rank may take; None: unknown."""
    from bert_horovod.cluster.doctor.facts import available_memory_bytes
    from bert_horovod.costs.gpus import gpu_memory
    from bert_horovod.measuring.largest_micro_batch import parse_bytes

    if arguments.memory:
        return parse_bytes(arguments.memory, "--memory")
    if machine.gpu:
        found = gpu_memory(facts["gpus"][0])
        return int(_GPU_SHARE * found.gib * 2**30) if found else None
    return int(_MEMORY_SHARE * available_memory_bytes() / machine.local_size)
