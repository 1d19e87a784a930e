"""What a recipe will take on given devices and a given link, before anything runs: time, memory, efficiency, days.

    step = K (forward + backward) + accumulation + exposed communication + update

- Forward and backward: the FLOPs of the matrix products (costs/products.py, with the backward of
  costs/backward_profile.py) over the device's peak times the share of it that is reached.
- Accumulation and update move numbers through memory: bytes over the memory's rate, as in Kundu et al. (arXiv
  2407.14645), who take an operation to last max(FLOPs / (peak x share), bytes / bandwidth).
- Communication: sums over ranks (costs/link.py), by ring or in two steps, of the buckets that the program itself would
  choose for this link and this backward (costs/buckets.py); exposed is what lasts beyond the last micro-batch's
  backward.
- Memory: costs/memory_estimate.py.

Not counted: input (rows are assembled beside the step), evaluations, checkpoints, start-up, ranks that wait for the
slowest one, and what communication takes from computation where one device does both. So fast links promise too much:
NVIDIA's published 512 V100s reach 78 % of this plan at length 128, 32 GPUs of HKBU's on 10 Gb/s 98 %.
"""

import math
from dataclasses import dataclass

from bert_horovod.costs import buckets
from bert_horovod.costs.backward_profile import computed_profile
from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.costs.derived import derive
from bert_horovod.costs.link import LINKS, NUMBER_BYTES, reductions
from bert_horovod.costs.memory_estimate import WIDTHS
from bert_horovod.model.parameters import Shapes, pretraining_shapes
from bert_horovod.optimizers.base import state_slots
from bert_horovod.recipe.sections import Recipe

# NVIDIA's published rows/s of BERT-large in mixed precision (DeepLearningExamples, TensorFlow2/LanguageModeling/BERT)
# times costs/products.py's FLOPs a row: 39 % (length 128) and 32 % (512) of a V100's peak, 36 % and 31 % of an A100's,
# with the update, kernels between products and all else that a step does.
PRODUCT_SHARE = 0.35
# Rings over TCP carried 0.88 to 0.94 of 100 Mb/s in docs/results.md, and 0.92 of 10 Gb/s in HKBU's published runs.
LINK_SHARE = 0.9
# HKBU's published fits over 10 Gb/s Ethernet: 0.9, 4.0 and 7.0 ms for all-reduces over 16, 32 and 64 ranks (30, 62 and
# 126 hops), which are 0.03 to 0.065 ms a hop.
HOP_LATENCY_S = 5e-5
DAY_S = 86400


@dataclass(frozen=True)
class Device:
    """What one rank computes with."""

    name: str
    flops_per_s: float  # peak of matrix products in the recipe's precision
    product_share: float = PRODUCT_SHARE  # of the peak, what forward and backward reach as a whole
    memory_bytes: float | None = None  # None: unknown, any estimate fits
    memory_bytes_per_s: float | None = None  # None: unknown, accumulation and update are not counted


@dataclass(frozen=True)
class Hop:
    """The slowest hop of the ring of ranks: as a rule the network between two hosts."""

    bytes_per_s: float  # nominal
    share: float = LINK_SHARE  # of the nominal rate, what all-reduces reach
    latency_s: float = HOP_LATENCY_S


@dataclass(frozen=True)
class PhasePlan:
    """A phase on so many ranks."""

    phase: int
    world_size: int
    micro_batches: int  # K, per rank and step
    forward_backward_s: float  # of all K
    accumulation_s: float  # adding gradients of micro-batches
    update_s: float
    communication_s: float  # all sums of a step
    exposed_s: float  # of them, what backward does not hide
    buckets: int
    memory_bytes: int  # of a rank, estimated
    rows_per_s: float  # over all ranks
    tokens_per_s: float  # positions, padding included, over all ranks
    efficiency: float  # rows/s over those of world_size single ranks
    days: float  # of all the phase's steps

    @property
    def step_s(self) -> float:
        """Of a whole step."""
        return self.forward_backward_s + self.accumulation_s + self.update_s + self.exposed_s


def plan_phase(recipe: Recipe, phase: int, world_size: int, device: Device, hop: Hop) -> PhasePlan:
    """The plan of one phase on `world_size` equal devices; raises UserError if the ranks cannot share the batch."""
    settings = recipe.phase[phase]
    derived = derive(recipe, settings, world_size, gpu=True)
    count = derived.micro_batches
    profile = computed_profile(recipe, settings.sequence_length, world_size, device.flops_per_s * device.product_share)
    communication_s, exposed_s, bucket_count = _communication(recipe, profile, world_size, hop)
    rate = device.memory_bytes_per_s or math.inf
    parts = {
        "forward_backward_s": count * profile.end_s,
        "accumulation_s": accumulation_bytes(recipe, derived.parameters, count) / rate,
        "update_s": update_bytes(recipe, derived.parameters, count, world_size) / rate,
        "exposed_s": exposed_s,
    }
    step_s = sum(parts.values())
    rows_per_s = settings.global_batch / step_s
    alone = rows_per_s if world_size == 1 else plan_phase(recipe, phase, 1, device, hop).rows_per_s
    return PhasePlan(
        phase=phase,
        world_size=world_size,
        micro_batches=count,
        **parts,
        communication_s=communication_s,
        buckets=bucket_count,
        memory_bytes=derived.memory_bytes,
        rows_per_s=rows_per_s,
        tokens_per_s=rows_per_s * settings.sequence_length,
        efficiency=rows_per_s / (world_size * alone),
        days=settings.steps * step_s / DAY_S,
    )


def accumulation_bytes(recipe: Recipe, parameters: int, micro_batches: int) -> int:
    """What adding a step's gradients moves through memory: float32 sums are read and written, gradients are read."""
    return 0 if micro_batches == 1 else micro_batches * parameters * (8 + WIDTHS[recipe.numerics.precision])


def update_bytes(recipe: Recipe, parameters: int, micro_batches: int, world_size: int) -> int:
    """What an update moves through memory: see optimizers/applying.py.

    The norm reads gradients; one pass reads parameters, gradients and slots and writes slots; another reads all three
    and writes parameters and their copy in the compute precision. Rules without norms of tensors do both in one pass,
    which saves them a third of this at most.
    """
    width = WIDTHS[recipe.numerics.precision]
    gradient = width if micro_batches == 1 and world_size == 1 else 4
    slots = 4 * len(state_slots(recipe))
    reads = 4 + gradient + slots
    return parameters * (gradient + 2 * reads + slots + 4 + (width if width < 4 else 0))


def _communication(recipe: Recipe, profile: BackwardProfile, world_size: int, hop: Hop) -> tuple[float, float, int]:
    """Seconds of a step's sums over ranks, seconds of them beyond backward, and their number."""
    if world_size == 1:
        return 0.0, 0.0, 0
    width, setting = NUMBER_BYTES[recipe.numerics.wire], recipe.execution.bucket_bytes
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    if setting == "auto":
        shapes, profile = _merged(shapes, profile)
    found = []
    for reduction in reductions(recipe):
        link = LINKS[reduction](world_size, hop.bytes_per_s * hop.share, hop.latency_s)
        if setting == "auto":
            plan = buckets.by_profile(shapes, width, profile, link, reduction, recipe.numerics.wire != "int8")
        else:
            plan = buckets.by_size(shapes, setting)
        sizes = buckets.payload_bytes(plan, shapes, width, profile)
        exposed_s = buckets.seconds(plan, shapes, width, profile, link) - profile.end_s
        found.append((sum(map(link.seconds, sizes)), exposed_s, len(sizes)))
    return min(found, key=lambda each: each[1])


def _merged(shapes: Shapes, profile: BackwardProfile) -> tuple[Shapes, BackwardProfile]:
    """Parameters whose gradients are there at one time as one, but for looked-up tables: so a plan is found sooner."""
    merged: Shapes = {}
    ready_s: dict[str, float] = {}
    for name, shape in shapes.items():
        table = name in profile.rows
        key = name if table else f"gradients at {profile.ready_s[name]!r} s"
        merged[key] = shape if table else (merged.get(key, (0,))[0] + math.prod(shape),)
        ready_s[key] = profile.ready_s[name]
    return merged, BackwardProfile(profile.forward_s, ready_s, profile.end_s, profile.rows)
