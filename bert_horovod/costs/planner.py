"""Plans a recipe on given devices and a given link before anything runs: time, memory, efficiency, days.

    step = K (forward + backward) + accumulation + update + waiting + exposed communication + exposed input

- Forward and backward: the FLOPs of the matrix products (costs/derived.py, with the backward of
  costs/buckets.py) / (the device's peak x the share of the peak that it reaches).
- The kernels between products take at least (bytes that they move) / (memory rate), see costs/memory_estimate.py. This
  time is a part of forward and backward, not added to it, because the reached share was measured with these kernels.
- Accumulation and update move numbers through memory: bytes / memory rate, as in Kundu et al. (arXiv 2407.14645), for
  whom an operation lasts max(FLOPs / (peak x share), bytes / bandwidth).
- Communication: the bytes that exchange.method sends in each stage of a phase (costs/exchanges.py), in sums over ranks,
  by ring or by two_step, with the buckets that the program itself would choose for this link and this backward
  (costs/buckets.py). Exposed communication is the part after the last micro-batch's backward; for parts of
  dreamddp and fragments of diloco, the part after the micro-batches that they run beside; for averages of local
  updates, all of it. A phase's values are means over its stages, weighted by their shares of the steps.
- Waiting: all ranks wait for the slowest device, whose speed is an order statistic of a normal distribution.
- Input: a core of the host assembles a rank's rows during the step; exposed input is the part that takes longer.
- Memory: costs/memory_estimate.py.

Not counted: encoding and decoding of narrow wires, evaluations, checkpoints, start-up, and the slowdown of computation
by communication on the same device.
`python lab/planner.py` compares plans with published and measured tables.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.costs import buckets
from bert_horovod.costs.buckets import BackwardProfile, BucketPlan, computed_profile
from bert_horovod.costs.derived import derive
from bert_horovod.costs.exchanges import (
    NUMBER_BYTES,
    Fabric,
    Link,
    link_of_hosts,
    measured_buckets,
    number_bytes,
    sent_bytes,
    sent_shapes,
    stages,
)
from bert_horovod.costs.gpus import PRODUCT_SHARE, TERA, Gpu
from bert_horovod.costs.memory_estimate import WIDTHS, kernel_bytes
from bert_horovod.model.parameters import Shapes, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.sections import Recipe, Stage, reductions, sums_by_host
from bert_horovod.recipe.settings import Phase

# This program on an H200, whole steps too: 26 to 29 % of the peak (docs/results/gpu.md).
HOPPER_SHARE = 0.28
# On an A100 and an H200, whose memories move 5 bytes for 1,000 operations of the peak, kernels between products take a
# fifth of forward and backward (rows of 128). Where the memory is slower beside the peak (L4, L40S), they take more.
KERNELS_SHARE, BYTES_PER_FLOP = 0.2, 4.8e-3
# Rings over TCP carried 0.88 to 0.94 of 100 Mb/s (docs/results/scaling.md), and 0.92 of 10 Gb/s in HKBU's published
# runs.
LINK_SHARE = 0.9
# HKBU's published fits over 10 Gb/s Ethernet: 0.9, 4.0 and 7.0 ms for all-reduces over 16, 32 and 64 ranks (30, 62 and
# 126 hops), which are 0.03 to 0.065 ms a hop.
HOP_LATENCY_S = 5e-5
# NVIDIA's published rows/s per GPU of 4, 8 and 16 V100s of one node, which accumulate 64 micro-batches or more, are 3
# to 7 % below those of one. The slowest device would be as slow if devices' speeds differed by 3.1 to 4.5 % (standard
# deviation): see slowest().
SPREAD = 0.037
# docs/results/packing.md: a core assembles 46,400 rows/s of length 128 and 27,400 of 512.
ROW_S, POSITION_S = 1.65e-5, 3.9e-8
DAY_S = 86400


@dataclass(frozen=True)
class Device:
    """The device of one rank."""

    name: str
    flops_per_s: float  # peak of matrix products in the recipe's precision
    product_share: float = PRODUCT_SHARE  # share of the peak that forward and backward reach as a whole
    memory_bytes: float | None = None  # as the data sheet has it; None: unknown, any estimate fits
    memory_bytes_per_s: float | None = None  # None: unknown, accumulation and update are not counted
    spread: float = 0.0  # standard deviation of devices' speeds, as a share of their mean
    allocatable_bytes: float | None = None  # of the memory, by TensorFlow: costs/gpus.py; None: unknown
    capability: tuple[int, int] = (7, 0)  # compute capability; of an unknown GPU one that needs the most memory
    sheet: str = ""  # the product whose data sheet was taken


def usual_share(gpu: Gpu | None, capability: tuple[int, int]) -> float:
    """The share of its peak that a GPU is expected to reach, by its kind and by its memory's rate beside the peak."""
    share = HOPPER_SHARE if capability >= (9, 0) and not (gpu and "RTX" in gpu.name) else PRODUCT_SHARE
    if gpu is None:
        return share
    bytes_per_flop = gpu.memory.gb_per_s * 1e9 / (gpu.peaks.float16 * TERA)
    return share / (1 + KERNELS_SHARE * max(0.0, BYTES_PER_FLOP / bytes_per_flop - 1))


@dataclass(frozen=True)
class Network:
    """The links between ranks: the slowest hop, usually between two hosts, and the link inside a host."""

    bytes_per_s: float  # nominal, of a host's link to other hosts, in each direction
    share: float = LINK_SHARE  # share of the nominal rate that all-reduces reach
    latency_s: float = HOP_LATENCY_S
    devices: int = 1  # per host; they share the host's link
    inside_bytes_per_s: float = math.inf  # rate that an all-reduce inside a host reaches, its share included
    inside_latency_s: float = 0.0

    def link(self, recipe: Recipe, reduction: str, world_size: int, number_bytes: float) -> Link:
        """The link of sums over ranks, which fill hosts one after another; `number_bytes`: of a number on the wire."""
        between = Fabric(self.bytes_per_s * self.share, self.latency_s)
        inside = Fabric(self.inside_bytes_per_s, self.inside_latency_s)
        return link_of_hosts(reduction, world_size, self.devices, between, inside, sums_by_host(recipe), number_bytes)


@dataclass(frozen=True)
class StagePlan:
    """Steps of a phase in which ranks send the same; values are per step, on average."""

    name: str
    share: float  # of the phase's steps
    sent_bytes: float  # by a rank
    communication_s: float  # of all sums
    exposed_s: float  # the part of communication_s that nothing hides


@dataclass(frozen=True)
class PhasePlan:
    """The plan of a phase on `world_size` ranks."""

    phase: int
    world_size: int
    micro_batches: int  # K, per rank and step
    forward_backward_s: float  # of all K
    kernels_s: float  # the part of it for kernels between products, at the memory's rate; 0: the rate is not known
    accumulation_s: float  # adding gradients of micro-batches
    update_s: float
    waiting_s: float  # for the slowest rank
    sent_bytes: float  # by a rank in a step; this and the next two are means over stages
    communication_s: float  # of all sums of a step
    exposed_s: float  # the part of communication_s that nothing hides
    input_s: float  # assembling rows
    exposed_input_s: float  # the part of input_s that is longer than the rest of the step
    stages: tuple[StagePlan, ...]
    buckets: int  # 0: nothing is sent
    memory_bytes: int  # of a rank, estimated
    rows_per_s: float  # over all ranks
    tokens_per_s: float  # positions, padding included, over all ranks
    efficiency: float  # rows/s over those of world_size single ranks
    days: float  # of all the phase's steps

    @property
    def step_s(self) -> float:
        """Seconds of a whole step, a mean over stages."""
        parts = (self.forward_backward_s, self.accumulation_s, self.update_s, self.waiting_s, self.exposed_s)
        return sum(parts) + self.exposed_input_s


@lru_cache(maxsize=1024)
def plan_phase(recipe: Recipe, phase: int, world_size: int, device: Device, network: Network) -> PhasePlan:
    """The plan of one phase on `world_size` equal devices; raises UserError if the ranks cannot share the batch."""
    settings = recipe.phase[phase]
    derived = derive(recipe, settings, world_size, capability=device.capability)
    count = derived.micro_batches
    deep, flops_per_s = recipe.in_phase(settings), device.flops_per_s * device.product_share
    shapes = trained_shapes(_shapes(deep.model, recipe.objective.pairs), deep.model, settings.trained_layers)
    profile = computed_profile(deep, settings, world_size, flops_per_s)
    stage_plans, bucket_count = _communication(deep, settings, shapes, profile, count, world_size, network)
    bytes_sent, communication_s, exposed_s = (
        sum(stage.share * getattr(stage, name) for stage in stage_plans)
        for name in ("sent_bytes", "communication_s", "exposed_s")
    )
    rate = device.memory_bytes_per_s or math.inf
    slots = full_row_slots(recipe, settings).mean
    parts = {
        "forward_backward_s": count * profile.end_s,
        "accumulation_s": accumulation_bytes(recipe, derived.trained, count) / rate,
        "update_s": update_bytes(recipe, shapes, count, world_size) / rate
        + recipe.optimizer.flops(shapes) / flops_per_s,
    }
    parts |= {"waiting_s": device.spread * slowest(world_size) * sum(parts.values()), "exposed_s": exposed_s}
    input_s = count * recipe.execution.micro_batch * (ROW_S + POSITION_S * settings.sequence_length)
    parts["exposed_input_s"] = max(0.0, input_s - sum(parts.values()))
    step_s = sum(parts.values())
    rows_per_s = settings.global_batch / step_s
    alone = rows_per_s if world_size == 1 else plan_phase(recipe, phase, 1, device, network).rows_per_s
    return PhasePlan(
        phase=phase,
        world_size=world_size,
        micro_batches=count,
        **parts,
        kernels_s=count * kernel_bytes(deep, settings.sequence_length, slots, settings.trained_layers) / rate,
        input_s=input_s,
        sent_bytes=bytes_sent,
        communication_s=communication_s,
        stages=tuple(stage_plans),
        buckets=bucket_count,
        memory_bytes=derived.memory_bytes,
        rows_per_s=rows_per_s,
        tokens_per_s=rows_per_s * settings.sequence_length,
        efficiency=rows_per_s / (world_size * alone),
        days=settings.steps * step_s / DAY_S,
    )


def slowest(count: int) -> float:
    """Standard deviations by which the slowest of `count` equal devices is expected below their mean (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def accumulation_bytes(recipe: Recipe, parameters: int, micro_batches: int) -> int:
    """Bytes that adding a step's gradients moves through memory: it reads and writes float32 sums, reads gradients."""
    return 0 if micro_batches == 1 else micro_batches * parameters * (8 + WIDTHS[recipe.numerics.precision])


def update_bytes(recipe: Recipe, shapes: Shapes, micro_batches: int, world_size: int) -> int:
    """Bytes that an update moves through memory: see optimizers/applying.py.

    The norm reads gradients; one pass reads parameters, gradients and slots and writes slots; another reads all three
    and writes parameters and their copy in the compute precision. Rules that are not adaptive need only one pass, which
    saves a third of these bytes at most.
    """
    width = WIDTHS[recipe.numerics.precision]
    gradient = width if micro_batches == 1 and world_size == 1 else 4
    parameters, slots = sum(map(math.prod, shapes.values())), 4 * slot_numbers(recipe, shapes)
    return parameters * (gradient + 2 * (4 + gradient) + 4 + (width if width < 4 else 0)) + 3 * slots


_shapes = lru_cache(pretraining_shapes)


def _communication(
    recipe: Recipe,
    phase: Phase,
    shapes: Shapes,
    profile: BackwardProfile,
    micro_batches: int,
    world_size: int,
    network: Network,
) -> tuple[list[StagePlan], int]:
    """The phase's stages with the way to sum gradients that exposes the least communication, and the number of buckets.

    `shapes` are those of the parameters that train.
    """
    if world_size == 1:
        return [StagePlan(stage.name, stage.share, 0.0, 0.0, 0.0) for stage in stages(recipe, phase)], 0
    measured = measured_buckets(recipe)
    if measured:
        shapes, profile = _merged(shapes, profile)
    width, ways = NUMBER_BYTES[recipe.numerics.wire], []
    for reduction in reductions(recipe):
        if measured:
            link = network.link(recipe, reduction, world_size, width)
            rows_alone = recipe.exchange.rows_alone(recipe)
            plan = buckets.by_profile(shapes, width, profile, link, reduction, rows_alone)
        else:
            plan = buckets.by_size(shapes, recipe.execution.bucket_bytes)
        stage_plans = [
            _stage_plan(recipe, stage, _Gradients(shapes, profile, plan), micro_batches, world_size, network)
            for stage in stages(recipe, phase, reduction)
        ]
        ways.append((stage_plans, len(plan.buckets) + (plan.rows is not None)))
    return min(ways, key=lambda way: sum(stage.share * stage.exposed_s for stage in way[0]))


class _Gradients(NamedTuple):
    """A step's gradients: their shapes, when backward has produced them, and the buckets in which they are sent."""

    shapes: Shapes
    profile: BackwardProfile
    plan: BucketPlan


def _stage_plan(
    recipe: Recipe, stage: Stage, gradients: _Gradients, micro_batches: int, world_size: int, network: Network
) -> StagePlan:
    """The plan of a stage: its bytes, and the times of its communication."""
    shapes, profile, plan = gradients
    link = network.link(recipe, stage.reduction, world_size, NUMBER_BYTES[stage.wire])
    ring = network.link(recipe, "ring", world_size, NUMBER_BYTES[stage.wire])
    shapes = sent_shapes(stage, shapes)
    numbers = [sum(math.prod(shapes[name]) for name in bucket) for bucket in plan.buckets]
    by_host = sums_by_host(recipe) and world_size > network.devices and world_size % network.devices == 0
    bytes_sent = sent_bytes(stage, numbers, world_size, network.devices if by_host else 1)
    communication_s = exposed_s = 0.0
    if stage.during_backward:
        width = number_bytes(stage)
        communication_s = sum(map(link.seconds, buckets.payload_bytes(plan, shapes, width, profile)))
        exposed_s = buckets.seconds(plan, shapes, width, profile, link) - profile.end_s
        if plan.rows is not None:
            bitmap_bytes = shapes[plan.rows][0]
            rows_bytes = buckets.rows_bytes(plan.rows, shapes, width, profile)
            bytes_sent += 2 * (world_size - 1) / world_size * (rows_bytes + bitmap_bytes)
    if stage.meanwhile:
        part_s = ring.seconds(NUMBER_BYTES[stage.wire] * stage.meanwhile * sum(numbers) / micro_batches)
        communication_s += micro_batches * part_s
        exposed_s += micro_batches * max(0.0, part_s - profile.end_s)
    if stage.after:
        after_s = stage.after * sum(
            link.seconds(NUMBER_BYTES[stage.wire] * bucket_numbers) for bucket_numbers in numbers
        )
        communication_s += after_s
        exposed_s += after_s
    return StagePlan(stage.name, stage.share, bytes_sent, communication_s, exposed_s)


def _merged(shapes: Shapes, profile: BackwardProfile) -> tuple[Shapes, BackwardProfile]:
    """Merge parameters whose gradients exist at the same time, except embedding tables, so that planning is faster."""
    merged: Shapes = {}
    ready_s: dict[str, float] = {}
    for name, shape in shapes.items():
        table = name in profile.rows
        key = name if table else f"gradients at {profile.ready_s[name]!r} s"
        merged[key] = shape if table else (merged.get(key, (0,))[0] + math.prod(shape),)
        ready_s[key] = profile.ready_s[name]
    return merged, BackwardProfile(profile.forward_s, ready_s, profile.end_s, profile.rows)
