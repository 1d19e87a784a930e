"""Ranks that do not fit each other are found before the first collective of a run.

They compare recipe, flags, program and packages. A rank with an old copy of the recipe would train with other losses,
without an error; with another [execution] or program its collectives would not match those of the other ranks. Rank 0
does not broadcast its recipe instead, because Horovod needs settings of [execution] before any broadcast, and because a
host with an old recipe often has an old program or old data too, and its user should know that.

If only some have a GPU they are refused, and several kinds of GPU are warned of. All ranks get equally many rows,
whatever their device, because rows and dropout masks are functions of their place in the global batch, and because one
micro-batch has one compiled shape. So the slowest device sets the pace of all.
"""

import platform
import socket
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_horovod.batches.source import Dataset
from bert_horovod.collectives.launched import Launch
from bert_horovod.collectives.starting import RendezvousBoard
from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.costs.gpus import gpu_peak
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe.fields import flat_table
from bert_horovod.recipe.methods_found import package_of
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.runs.state import Progress, TrainingState, ranks_that_differ
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.children import installed_version, source_hash
from bert_horovod.runtime.devices import fast_products, gpu_details
from bert_horovod.training.job import Job


def device_kind() -> str | None:
    """The name of this rank's GPU; None: it computes on the CPU."""
    details = gpu_details()
    return None if details is None else details.get("device_name", "a GPU without a name")


def check_kinds(hosts: Sequence[str], kinds: Sequence[str | None], precision: str) -> str | None:
    """A warning if ranks have several kinds of GPU, with what that costs at the data sheets' rates; None: all alike.

    Raises UserError if some ranks have a GPU and others have none.
    """
    ranks = {kind: [rank for rank, each in enumerate(kinds) if each == kind] for kind in kinds}
    if len(ranks) == 1:
        return None
    if without := ranks.get(None):
        lacking = ", ".join(dict.fromkeys(hosts[rank] for rank in without))
        raise UserError(
            f"rank(s) {_shown(without)} on {lacking} found no GPU, the other ranks have one. The driver or "
            "CUDA_VISIBLE_DEVICES there is at fault: see nvidia-smi and `bert-horovod doctor`, or leave the host out. "
            "For a run on CPUs alone: CUDA_VISIBLE_DEVICES= before the command"
        )
    having = "; ".join(f"rank(s) {_shown(numbers)}: {kind}" for kind, numbers in ranks.items())
    cost = _cost(kinds, precision)
    return f"GPUs of several kinds: {having}. All get equally many rows: the slowest sets the pace{cost}"


def _cost(kinds: Sequence[str | None], precision: str) -> str:
    """How much of all devices' rates is lost by waiting, for people; "" where a data sheet is not known."""
    rates = [gpu_peak(kind or "", precision, tensor_float_32=True) for kind in kinds]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        return ""
    return f", and {1 - min(known) * len(known) / sum(known):.0%} of their data sheets' rates are lost by waiting"


def _shown(ranks: Sequence[int]) -> str:
    """Numbers of ranks for people, runs of them joined: 0-3, 6."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


# Settings of [execution] that may differ between hosts: they affect no collective and no result, or rank 0 alone uses
# them.
OF_A_HOST = ("threads", "stall_s", "trackers", "keep_checkpoints", "mirror")
_SHOWN = 5  # keys in a message, at most
_SUBJECT = "work"  # subject of the entries in the rendezvous store


def require_agreement(jobs: Sequence[Job], world: World) -> None:
    """Raise UserError on all ranks if a rank's jobs differ from rank 0's; it names rank, host, key and both values.

    Raises it likewise if only some ranks have a GPU; rank 0 warns of several kinds of GPU. The ranks exchange one
    all-gather of bytes, which works even if ranks differ: each may send another number of bytes.
    """
    if world.size == 1:
        return
    everyone = from_all_ranks([[socket.gethostname(), described(jobs), device_kind()]], world, "agreement")
    hosts, work, kinds = zip(*everyone, strict=True)
    if difference := disagreement(list(zip(hosts, work, strict=True))):
        raise UserError(difference)
    warning = check_kinds(hosts, kinds, jobs[0].recipe.numerics.precision)
    if warning and world.rank == 0:
        print(f"bert-horovod: warning: {warning}", file=sys.stderr, flush=True)


def require_same_data(dataset: Dataset, world: World) -> None:
    """Raise UserError, on all ranks, if the data differ between ranks."""
    different = ranks_that_differ(world, bytes.fromhex(dataset.hash), "data")
    if different:
        raise UserError(
            f"the data of ranks {different} are not those of rank 0: every host needs the same copy of them "
            "and the same version of this program"
        )


def require_same_state(state: TrainingState, world: World) -> None:
    """Raise RunError, on all ranks, if parameters or slots differ between ranks."""
    different = ranks_that_differ(world, state.hash(), "state")
    if different:
        raise RunError(
            f"the parameters of ranks {different} are not those of rank 0. Memory, a device or the network of a host "
            "has changed numbers: look at that host before going on. The same command resumes from the last checkpoint"
        )


def agree_on_products(recipe: Recipe, progress: Progress, world: World) -> str:
    """Choose the dtype in which the optimizer multiplies matrices, if the run has none yet; all ranks call it together.

    It is the fastest one that the devices of all ranks have, because each rank computes all products: in unlike dtypes
    their parameters would drift apart. A recipe in float32 keeps float32. Runs of earlier versions, which kept no
    dtype, go on with that of their devices: bfloat16 on GPUs that have it, whatever the recipe's precision, float32 on
    CPUs.

    Returns:
        A line for people; "" if there is nothing to say.
    """
    if not recipe.optimizer.multiplies:
        return ""
    everyone = from_all_ranks([list(fast_products())], world, "products")
    common = [dtype for dtype in everyone[0] if all(dtype in of_rank for of_rank in everyone)]
    kept = progress.products
    if not kept:
        if progress.updates:
            on_gpus = "float16" in common  # no CPU has it
            progress.products = "bfloat16" if on_gpus and "bfloat16" in common else "float32"
        else:
            progress.products = common[0] if common and recipe.numerics.precision != "float32" else "float32"
    slower = kept not in ("", "float32") and kept not in common
    return f"{recipe.optimizer.name} multiplies matrices in {progress.products}" + (
        ", as the run began: slowly on a device without units for it" if slower else ""
    )


def announce(jobs: Sequence[Job], launched: Launch) -> None:
    """Write this rank's jobs to the rendezvous store before Horovod starts; `why_not_joined` reads them."""
    if launched.size > 1:
        RendezvousBoard(_SUBJECT).write(launched.rank, [socket.gethostname(), described(jobs)])


def why_not_joined(launched: Launch) -> UserError:
    """The error to raise if Horovod did not start, for example because ranks ask for different process sets."""
    board = RendezvousBoard(_SUBJECT)
    everyone = [board.read(rank) for rank in range(launched.size)]
    known = [fingerprint or everyone[0] for fingerprint in everyone]  # a rank without an entry is taken to agree
    return UserError(
        (everyone[0] and disagreement(known))
        or "Horovod could not be initialised; its own words are above. Where they are of process sets, recipes differ "
        "in numerics.wire or [exchange], or hosts in their number of ranks: every host needs the same, or start them "
        "by bert-horovod launch, which takes other numbers"
    )


def described(jobs: Sequence[Job]) -> dict[str, Any]:
    """All values that must be equal on all ranks, by key."""
    settings = {
        "program": source_hash()[:12],
        "Python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "horovod": installed_version("horovod"),
        "runs": len(jobs),
    }
    for job in jobs:
        table = recipe_to_table(job.recipe)
        for name in OF_A_HOST:
            del table["execution"][name]
        packages = {
            f"package of {name}": package_of(type(method))
            for name, method in (("optimizer.name", job.recipe.optimizer), ("exchange.method", job.recipe.exchange))
        }
        of_job = flat_table({**table, **packages, "task": type(job.task).__name__, "--max_steps": job.max_steps})
        settings |= (
            {f"{job.output_dir.name}: {key}": value for key, value in of_job.items()} if len(jobs) > 1 else of_job
        )
    return settings


def disagreement(everyone: list[tuple[str, dict[str, Any]]]) -> str | None:
    """A message about the ranks that differ from rank 0; None if none does.

    `everyone`: for each rank its host and the result of `described`.
    """
    (first_host, first), *rest_of_ranks = everyone
    differing = [rank for rank, (_, theirs) in enumerate(rest_of_ranks, 1) if theirs != first]
    if not differing:
        return None
    host, theirs = everyone[differing[0]]
    keys = [key for key in {**first, **theirs} if first.get(key) != theirs.get(key)]
    differences = "; ".join(f"{key} = {theirs.get(key)!r}, rank 0 has {first.get(key)!r}" for key in keys[:_SHOWN])
    more = f"; and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    also = f" So do ranks {differing[1:]}." if differing[1:] else ""
    return (
        f"rank {differing[0]} on {host} differs from rank 0 on {first_host}: {differences}{more}.{also} "
        "Every host needs the same recipe, flags, program and packages; bring that host up to date"
    )
