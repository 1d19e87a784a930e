"""What ranks owe, when the ranks or the buckets are others than they were.

Compressed sums leave errors behind (exchange/two_step.py) and residuals (exchange/largest_chunks.py), each on one rank
and by bucket. Only their sum over ranks enters later results, so that any shares with that sum keep what is owed.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bert_horovod.costs.exchanges import part_size

WORKER, SERVER, RESIDUAL = "error.worker", "error.server", "residual"  # a variable's name is one of these, then .bucket


class Layout(NamedTuple):
    """Where the numbers of a bucket lie."""

    ranks: int
    inside: int  # ranks of a host that sum among themselves first
    buckets: list[list[str]]  # parameters


def total(
    kept: Iterable[dict[str, np.ndarray]], layout: Layout, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """What all ranks owe together, float32 by parameter.

    Args:
        kept: what each rank kept, in the order of ranks, by variable.
        layout: theirs.
        shapes: of the parameters.

    Raises ValueError where something is not of the layout's shape.
    """
    sums = [np.zeros(layout.ranks * part_size(_numbers(bucket, shapes), layout.ranks)) for bucket in layout.buckets]
    for rank, variables in enumerate(kept):
        host, place = divmod(rank, layout.inside)
        for name, values in variables.items():
            kind, _, bucket = name.rpartition(".")
            if kind not in (WORKER, SERVER, RESIDUAL) or not bucket.isdecimal() or int(bucket) >= len(sums):
                raise ValueError(f"{name[:100]}: expected {WORKER}.N, {SERVER}.N or {RESIDUAL}.N of a bucket N")
            whole = sums[int(bucket)]
            if kind == RESIDUAL:
                flat = values.reshape(-1)[: len(whole)]
                whole[: len(flat)] += flat
                continue
            hosts = layout.ranks // layout.inside
            size = len(whole) // layout.ranks
            begin, count = place * hosts * size, hosts * size
            if kind == SERVER:
                begin, count = begin + host * size, size
            if values.size != count:
                raise ValueError(f"{name}: {values.size} numbers, expected {count}")
            whole[begin : begin + count] += values.reshape(-1)
    found: dict[str, np.ndarray] = {}
    for bucket, whole in zip(layout.buckets, sums, strict=True):
        ends = np.cumsum([math.prod(shapes[name]) for name in bucket])
        parts = np.split(whole[: ends[-1]], ends[:-1])
        found |= {name: part.reshape(shapes[name]).astype(np.float32) for name, part in zip(bucket, parts, strict=True)}
    return found


def shares(owed: dict[str, np.ndarray], kinds: set[str], layout: Layout, rank: int) -> dict[str, np.ndarray]:
    """A rank's equal share of what is owed, float32 by variable.

    Args:
        owed: by parameter; see total.
        kinds: of the variables that the ranks kept.
        layout: today's.
        rank: whose share.
    """
    found: dict[str, np.ndarray] = {}
    hosts, place = layout.ranks // layout.inside, rank % layout.inside
    for i, bucket in enumerate(layout.buckets):
        flat = np.concatenate([owed[name].reshape(-1) for name in bucket])
        if RESIDUAL in kinds:
            found[f"{RESIDUAL}.{i}"] = flat / np.float32(layout.ranks)
        else:
            size = part_size(len(flat), layout.ranks)
            padded = np.pad(flat, (0, layout.ranks * size - len(flat))).reshape(layout.inside, hosts, size)
            found[f"{WORKER}.{i}"] = padded[place] / np.float32(hosts)
    return found


def _numbers(bucket: list[str], shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shapes[name]) for name in bucket)
