"""Moves the errors and residuals of compressed sums to another number of ranks or to other buckets.

Compressed sums leave errors (exchange/two_step.py) and residuals (exchange/compressed/largest_chunks.py), each on one
rank and by bucket, or by parameter (exchange/compressed/powersgd.py): the rank owes them to later sums. Only their sum
over ranks enters later results, so any other distribution with the same sum is as good.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bert_horovod.costs.exchanges import part_size

WORKER, SERVER, RESIDUAL = "error.worker", "error.server", "residual"  # a variable's name is one of these, then .bucket
OF_PARAMETER = "residual/"  # or this, then the name of a parameter, whose shape the variable has


class OwedLayout(NamedTuple):
    """The ranks and buckets that determine which rank owes which numbers."""

    ranks: int
    inside: int  # ranks of a host, which sum among themselves first
    buckets: list[list[str]]  # names of parameters


def total(
    kept: Iterable[dict[str, np.ndarray]], layout: OwedLayout, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The errors and residuals summed over all ranks, float32 by parameter.

    `kept`: the variables of each rank, by name, in the order of ranks, which `layout` describes. Raises ValueError if a
    variable's name or size does not fit the layout.
    """
    sums = [np.zeros(layout.ranks * part_size(_numbers(bucket, shapes), layout.ranks)) for bucket in layout.buckets]
    by_parameter = {name: np.zeros(shape) for name, shape in shapes.items()}
    for rank, variables in enumerate(kept):
        host, place = divmod(rank, layout.inside)
        for name, array in variables.items():
            if name.startswith(OF_PARAMETER):
                parameter = name.removeprefix(OF_PARAMETER)
                if array.shape != shapes.get(parameter):
                    raise ValueError(f"{name[:100]}: {array.shape}, expected a parameter's name and its shape")
                by_parameter[parameter] += array
                continue
            kind, _, bucket = name.rpartition(".")
            if kind not in (WORKER, SERVER, RESIDUAL) or not bucket.isdecimal() or int(bucket) >= len(sums):
                raise ValueError(
                    f"{name[:100]}: expected {WORKER}.N, {SERVER}.N or {RESIDUAL}.N of a bucket N, or "
                    f"{OF_PARAMETER}PARAMETER"
                )
            whole = sums[int(bucket)]
            if kind == RESIDUAL:
                flat = array.reshape(-1)[: len(whole)]
                whole[: len(flat)] += flat
                continue
            hosts = layout.ranks // layout.inside
            size = len(whole) // layout.ranks
            begin, count = place * hosts * size, hosts * size
            if kind == SERVER:
                begin, count = begin + host * size, size
            if array.size != count:
                raise ValueError(f"{name}: {array.size} numbers, expected {count}")
            whole[begin : begin + count] += array.reshape(-1)
    summed: dict[str, np.ndarray] = {}
    for bucket, whole in zip(layout.buckets, sums, strict=True):
        ends = np.cumsum([math.prod(shapes[name]) for name in bucket])
        parts = np.split(whole[: ends[-1]], ends[:-1])
        for name, part in zip(bucket, parts, strict=True):
            summed[name] = (part.reshape(shapes[name]) + by_parameter[name]).astype(np.float32)
    return summed


def shares(owed: dict[str, np.ndarray], names: Iterable[str], layout: OwedLayout, rank: int) -> dict[str, np.ndarray]:
    """One rank's share of the owed numbers, float32 by variable; all ranks that may owe a number get equal shares.

    `owed` is what `total` returns, `names` are those of the variables that each of the ranks kept; layout and rank are
    the new ones.
    """
    parameters = [name.removeprefix(OF_PARAMETER) for name in names if name.startswith(OF_PARAMETER)]
    share = {OF_PARAMETER + name: owed[name] / np.float32(layout.ranks) for name in parameters}
    kinds = {name.rpartition(".")[0] for name in names if not name.startswith(OF_PARAMETER)}
    if not kinds:
        return share
    hosts, place = layout.ranks // layout.inside, rank % layout.inside
    for i, bucket in enumerate(layout.buckets):
        flat = np.concatenate([owed[name].reshape(-1) for name in bucket])
        if RESIDUAL in kinds:
            share[f"{RESIDUAL}.{i}"] = flat / np.float32(layout.ranks)
        else:
            size = part_size(len(flat), layout.ranks)
            padded = np.pad(flat, (0, layout.ranks * size - len(flat))).reshape(layout.inside, hosts, size)
            share[f"{WORKER}.{i}"] = padded[place] / np.float32(hosts)
    return share


def _numbers(bucket: list[str], shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shapes[name]) for name in bucket)
