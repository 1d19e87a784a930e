"""All ranks do the same work: what they compare before their first collective of a run.

A rank with a stale copy of the recipe would train along, with other losses and without an error; with another
[execution] or program its collectives would not match. Why ranks compare recipes and are not given rank 0's: Horovod
needs settings of [execution] before a rank can be given anything, and a host with a stale recipe often has a stale
program or stale data too, of which its user should know.
"""

import platform
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.launched import Launch
from bert_horovod.collectives.messages import from_all_ranks
from bert_horovod.collectives.rendezvous import RendezvousBoard
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.recipe.loading import recipe_to_table
from bert_horovod.runtime.children import installed_version, source_hash
from bert_horovod.training.job import Job

# Settings of [execution] that steer no collective and no number: hosts may differ in them, or rank 0 alone uses them.
OF_A_HOST = (
    *("threads", "stall_s", "cycle_time_ms", "tensorboard"),
    *("keep_checkpoints", "keep_every_hours", "max_unsaved_hours"),
)
_SHOWN = 5  # keys in a message
_SUBJECT = "work"  # of what ranks announce


def require_agreement(jobs: Sequence[Job], world: World) -> None:
    """Raise UserError, on all ranks, that names rank, host, key and both values, if ranks are to do different work.

    One all-gather of bytes, whose number may differ from rank to rank: it cannot mismatch.
    """
    if world.size == 1:
        return
    everyone = from_all_ranks([[socket.gethostname(), described(jobs)]], world, "agreement")
    if found := disagreement(everyone):
        raise UserError(found)


def announce(jobs: Sequence[Job], launched: Launch) -> None:
    """Tell the other ranks what this one is to do, before Horovod starts: for `why_not_joined`."""
    if launched.size > 1:
        RendezvousBoard(_SUBJECT).write(launched.rank, [socket.gethostname(), described(jobs)])


def why_not_joined(launched: Launch) -> UserError:
    """What to raise where Horovod refused to start, as it does where ranks ask for other groups of ranks."""
    board = RendezvousBoard(_SUBJECT)
    everyone = [board.read(rank) for rank in range(launched.size)]
    known = [entry or everyone[0] for entry in everyone]  # of a rank that has said nothing yet, nothing is known
    return UserError(
        (everyone[0] and disagreement(known))
        or "Horovod could not be initialised; its own words are above. Where they are of process sets, recipes differ "
        "in numerics.wire or [exchange]: every host needs the same"
    )


def described(jobs: Sequence[Job]) -> dict[str, Any]:
    """All that ranks must have in common, by key."""
    found = {
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
        own = _flat({**table, "task": type(job.task).__name__, "--max_steps": job.max_steps})
        found |= {f"{job.output_dir.name}: {key}": value for key, value in own.items()} if len(jobs) > 1 else own
    return found


def disagreement(everyone: list[tuple[str, dict[str, Any]]]) -> str | None:
    """What to say of ranks, each a host and what it described, where one is not like rank 0; None: all are."""
    (first_host, first), *others = everyone
    differing = [rank for rank, (_, theirs) in enumerate(others, 1) if theirs != first]
    if not differing:
        return None
    host, theirs = everyone[differing[0]]
    keys = [key for key in {**first, **theirs} if first.get(key) != theirs.get(key)]
    values = "; ".join(f"{key} = {theirs.get(key)!r}, rank 0 has {first.get(key)!r}" for key in keys[:_SHOWN])
    more = f"; and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    also = f" So do ranks {differing[1:]}." if differing[1:] else ""
    return (
        f"rank {differing[0]} on {host} differs from rank 0 on {first_host}: {values}{more}.{also} "
        "Every host needs the same recipe, flags, program and packages; bring that host up to date"
    )


def _flat(table: Any, prefix: str = "") -> dict[str, Any]:
    """A table's values by their keys with dots between."""
    if isinstance(table, list) and table and isinstance(table[0], dict):
        table = dict(enumerate(table))
    if not isinstance(table, dict):
        return {prefix: table}
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found
