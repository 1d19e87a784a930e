"""The link between ranks as latency and time per byte: fitted to timed sums, or computed for a way to sum.

Computes the bytes that ranks send in the stages of an exchange, for plans and for advice to a run. A method says what
its stages are (recipe.sections.ExchangeMethod.stages); all steps of a stage send the same. Sums are sent at one of
three times:

    during backward   of the last micro-batch: gradients, momenta as signs, chunks
    meanwhile         during the whole step: parts of the parameters, diloco's fragments
    after             after the step, where nothing hides them: averages of local methods

Not counted: the all-reduces of one number that tell ranks whether a step is finite, and the time of encoding.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_horovod.model.parameters import Shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe, Stage, reductions
from bert_horovod.recipe.settings import Phase

TREE_SHARE = 0.9  # share of a ring's rate that trees are assumed to reach; not measured
BLOCK = 256  # numbers that share a scale; it divides every hidden size in use, so that blocks do not cross rows
# Bytes of a number on the wire, scales included: by numerics.wire, and as signs.
NUMBER_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1 + 2 / BLOCK, "signs": 1 / 8 + 2 / BLOCK}


class Link(NamedTuple):
    """A sum of b bytes over all ranks takes latency_s + b * s_per_byte, or the time by `tree` if that is shorter."""

    latency_s: float
    s_per_byte: float  # of payload
    tree: tuple[float, float] | None = None  # latency_s and s_per_byte of sums by trees; None: no trees

    def seconds(self, payload_bytes: float) -> float:
        """The time of one sum over all ranks."""
        taken_s = self.latency_s + payload_bytes * self.s_per_byte
        return taken_s if self.tree is None else min(taken_s, self.tree[0] + payload_bytes * self.tree[1])

    def slower(self, times: float) -> "Link":
        """The same link with `times` times fewer bytes a second."""
        tree = self.tree and (self.tree[0], self.tree[1] * times)
        return Link(self.latency_s, self.s_per_byte * times, tree)

    def bytes_per_s(self, world_size: int) -> float:
        """Bytes that a rank sends a second: 2 (n - 1) / n of the payload, by ring and by two_step.

        >>> round(ring(4, bytes_per_s=1e9, hop_latency_s=1e-4).bytes_per_s(4) / 1e9, 6)
        1.0
        """
        return 2 * (world_size - 1) / world_size / self.s_per_byte


def ring(world_size: int, bytes_per_s: float, hop_latency_s: float) -> Link:
    """The link of ring all-reduces (Patarasuk & Yuan 2009): 2 (n - 1) hops, 2 (n - 1) / n of the payload on each.

    A ring of one rank sends nothing. The slowest hop is usually between two hosts: all ranks of a host share one hop.
    `hop_latency_s` is that of a message from a rank to its neighbour.

    >>> link = ring(world_size=4, bytes_per_s=1e9, hop_latency_s=1e-4)
    >>> round(link.seconds(payload_bytes=2e9), 6)  # 6 hops, each with half a second for a quarter of the bytes
    3.0006
    """
    hops = 2 * (world_size - 1)
    return Link(hops * hop_latency_s, hops / world_size / bytes_per_s)


def two_step(world_size: int, bytes_per_s: float, hop_latency_s: float) -> Link:
    """The link of sums in two steps (exchange/two_step.py); arguments as for `ring`, and as many bytes as by ring.

    The messages of the all-to-all are sent at the same time; the all-gather is a ring of n - 1 hops.

    >>> round(two_step(world_size=4, bytes_per_s=1e9, hop_latency_s=1e-4).seconds(payload_bytes=2e9), 6)
    3.0004
    """
    hops = world_size if world_size > 1 else 0
    return Link(hops * hop_latency_s, 2 * (world_size - 1) / world_size / bytes_per_s)


def ring_or_tree(world_size: int, bytes_per_s: float, hop_latency_s: float, hosts: int) -> Link:
    """The link of NCCL's all-reduces; arguments as for `ring`. NCCL sends small sums up and down a tree of hosts.

    A tree has 2 log2(hosts) hops, and sends each byte of the payload twice, at TREE_SHARE of the ring's rate.
    """
    latency_s = 2 * math.ceil(math.log2(hosts)) * hop_latency_s
    tree = (latency_s, 2 / (TREE_SHARE * bytes_per_s)) if hosts > 1 else None
    return ring(world_size, bytes_per_s, hop_latency_s)._replace(tree=tree)


LINKS: dict[str, Callable[[int, float, float], Link]] = {"ring": ring, "two_step": two_step}


class Fabric(NamedTuple):
    """The network between hosts, or the connection of the devices of one host."""

    bytes_per_s: float  # rate that all-reduces reach, in each direction
    latency_s: float  # of a message


def link_of_hosts(
    reduction: str,
    world_size: int,
    devices: int,
    between: Fabric,
    inside: Fabric,
    by_host: bool = False,
    number_bytes: float = 4.0,
) -> Link:
    """The link of sums ("ring" or "two_step") of ranks that fill hosts of so many devices one after another.

    The devices of a host share its fabric to other hosts. `by_host`: whether a host's ranks sum among themselves first,
    in float32, as in exchange/two_step.py; `number_bytes`: of a number on the wire between hosts.
    """
    hosts = math.ceil(world_size / devices)
    if hosts == 1:
        return LINKS[reduction](world_size, *inside)
    if reduction == "ring":  # neighbours in the ring are on one host, except for one pair a host
        slowest = between if devices == 1 else between._replace(bytes_per_s=min(between[0], inside[0]))
        return ring_or_tree(world_size, *slowest, hosts)
    if devices == 1:
        return two_step(world_size, *between)
    if by_host:
        first, across = ring(devices, *inside), two_step(hosts, *between)
        gathered = (devices - 1) / devices / inside.bytes_per_s
        latency_s = 1.5 * first.latency_s + across.latency_s
        return Link(latency_s, first.s_per_byte * 4 / number_bytes + across.s_per_byte + gathered)
    # Each rank sends a part to every rank of other hosts; then the sums of the parts are sent around a ring.
    leaves = devices * (world_size - devices) / world_size + (world_size - 1) / world_size
    return Link(world_size * between.latency_s, leaves / between.bytes_per_s)


def fit(seconds: list[tuple[int, float]]) -> Link:
    """Fit a link to (bytes, seconds) of sums, from small to large: slope from large sums, latency from small ones.

    The slope is between the two largest sums, because a switch or a shaped link lets a short burst through at a higher
    rate.

    >>> link = fit([(1000, 0.101), (2000, 0.102), (50_000, 0.15), (100_000, 0.2)])
    >>> round(link.latency_s, 6), round(link.s_per_byte, 9)
    (0.1, 1e-06)
    """
    payload, taken_s = (np.array(column, np.float64) for column in zip(*seconds, strict=True))
    slope = max((taken_s[-1] - taken_s[-2]) / (payload[-1] - payload[-2]), 1e-15)
    latency = float(np.median((taken_s - slope * payload)[: max(1, len(taken_s) // 2)]))
    return Link(latency if latency > 0 else float(taken_s.min()), float(slope))


def measured_buckets(recipe: Recipe) -> bool:
    """Whether buckets are cut by the measured link and backward, not only by size."""
    by_size = not recipe.exchange.overlaps or recipe.optimizer.clipping == "bucket"
    return recipe.execution.bucket_bytes == "auto" and not by_size


def stages(recipe: Recipe, phase: Phase, reduction: str = "") -> list[Stage]:
    """The stages of a phase of a checked recipe that have steps; their shares sum to 1.

    `reduction`: way to sum gradients; "": the first way that the recipe allows.
    """
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    all_stages = recipe.exchange.stages(recipe, phase, shapes, reduction or reductions(recipe)[0])
    return [stage for stage in all_stages if stage.share > 0]


def number_bytes(stage: Stage) -> float:
    """Bytes per number of the parameters in the payload during backward."""
    return NUMBER_BYTES[stage.wire] * (stage.fraction + (1 / stage.chunk if stage.chunk else 0.0))


def sent_shapes(stage: Stage, shapes: Shapes) -> Shapes:
    """The shapes of what is sent of parameters with these shapes: their own, or [numbers] if the stage counts them."""
    return shapes if stage.sent is None else {name: (stage.sent[name],) for name in shapes}


def sent_bytes(stage: Stage, buckets: Sequence[int], world_size: int, inside: int = 1) -> float:
    """Bytes that a rank sends in a step; with two_step only those to other hosts.

    `buckets`: how many numbers each has, by sent_shapes; `inside`: ranks of a host, which sum among themselves first;
    it makes no difference for the ring.

    >>> stage = Stage("all", share=1.0, wire="float16", reduction="ring")
    >>> sent_bytes(stage, [1000, 3000], world_size=4)  # 2 (n - 1) / n of 8,000 bytes
    12000.0
    """
    if world_size == 1:
        return 0.0
    ring = 2 * (world_size - 1) / world_size
    width, hosts = NUMBER_BYTES[stage.wire], world_size // inside
    meanwhile = 2 * (hosts - 1) / world_size if stage.reduction == "two_step" else ring
    sent = meanwhile * width * stage.meanwhile * sum(buckets)
    for numbers in buckets:
        chunks = -(-numbers // stage.chunk) if stage.chunk else 0
        if stage.reduction == "two_step":
            bytes_of_a_sum = 2 * (hosts - 1) * width * part_size(numbers, world_size)
        elif chunks:
            bytes_of_a_sum = ring * width * (math.ceil(stage.fraction * chunks) * stage.chunk + chunks)
        else:
            bytes_of_a_sum = ring * width * stage.fraction * numbers
        sent += bytes_of_a_sum * (stage.during_backward + stage.after)
    return sent


def part_size(numbers: int, ranks: int) -> int:
    """How many sums a rank makes in a two-step sum: whole blocks; the last rank's part ends with padding."""
    return math.ceil(numbers / (ranks * BLOCK)) * BLOCK
