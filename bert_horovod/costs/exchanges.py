"""Computes the bytes that ranks send with each exchange.method, for plans and for advice to a run.

A phase has up to three stages; all steps of a stage send the same. Sums are sent at one of three times:

    beside     during the last micro-batch's backward: gradients, momenta as signs, chunks
    meanwhile  during the whole step: dreamddp's parts of the parameters
    after      after the step, where nothing hides them: averages of local methods, syncs of zero_one_adam

Not counted: the all-reduces of one number that tell ranks whether a step is finite, and the time of encoding.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bert_horovod.costs.link import BLOCK, NUMBER_BYTES, reductions
from bert_horovod.model.parameters import pretraining_shapes
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.optimizers.schedule import sync_period, whole_steps
from bert_horovod.recipe.sections import Phase, Recipe

# Methods whose buckets are cut only by size; other methods cut them by the measured link and backward.
BY_SIZE = ("largest_chunks", "parameters", "mt_dao", "dreamddp")
# Plans assume this share for exchange.dense = "auto": published shares are 0.15 to 0.25 (arXiv 2102.02888).
AUTO_DENSE = 0.2


def measured_buckets(recipe: Recipe) -> bool:
    """Whether buckets are cut by the measured link and backward, not only by size."""
    by_size = recipe.exchange.method in BY_SIZE or recipe.optimizer.clipping == "bucket"
    return recipe.execution.bucket_bytes == "auto" and not by_size


@dataclass(frozen=True)
class Stage:
    """Steps of a phase in which ranks send the same; values are per step, on average."""

    name: str
    share: float  # of the phase's steps
    wire: str  # of the sums `beside` and `after`: a key of NUMBER_BYTES
    reduction: str  # way to sum `beside` and `after`: a key of costs.link.LINKS
    beside: bool = True  # whether all parameters' numbers, or their chosen chunks, are summed during backward
    fraction: float = 1.0  # share of the chunks that is sent during backward
    chunk: int = 0  # numbers of a chunk; 0: no chunks
    meanwhile: float = 0.0  # float32 ring averages of all parameters during the whole step: less than one
    after: float = 0.0  # sums over all parameters' numbers after the step: how many

    @property
    def number_bytes(self) -> float:
        """Bytes per number of the parameters in the payload `beside` backward."""
        return NUMBER_BYTES[self.wire] * (self.fraction + 1 / self.chunk if self.chunk else 1.0)

    def sent_bytes(self, buckets: Sequence[int], world_size: int, inside: int = 1) -> float:
        """Bytes that a rank sends in a step; with two_step only those to other hosts.

        Args:
            buckets: how many numbers each has.
            world_size: ranks.
            inside: ranks of a host, which sum among themselves first; it makes no difference for the ring.

        >>> stage = Stage("all", share=1.0, wire="float16", reduction="ring")
        >>> stage.sent_bytes([1000, 3000], world_size=4)  # 2 (n - 1) / n of 8,000 bytes
        12000.0
        """
        if world_size == 1:
            return 0.0
        ring = 2 * (world_size - 1) / world_size
        width, hosts = NUMBER_BYTES[self.wire], world_size // inside
        sent = ring * 4 * self.meanwhile * sum(buckets)
        for numbers in buckets:
            chunks = -(-numbers // self.chunk) if self.chunk else 0
            if self.reduction == "two_step":
                bytes_of_a_sum = 2 * (hosts - 1) * width * part_size(numbers, world_size)
            elif chunks:
                bytes_of_a_sum = ring * width * (math.ceil(self.fraction * chunks) * self.chunk + chunks)
            else:
                bytes_of_a_sum = ring * width * numbers
            sent += bytes_of_a_sum * (self.beside + self.after)
        return sent


def stages(recipe: Recipe, phase: Phase, reduction: str = "") -> list[Stage]:
    """The stages of a phase, whose shares sum to 1.

    Args:
        recipe: its exchange, wire and optimizer; already checked.
        phase: a phase of the recipe; shares depend on its steps and learning rate.
        reduction: way to sum gradients; "": the first way that the recipe allows.
    """
    exchange, wire, slots = recipe.exchange, recipe.numerics.wire, _slots_a_parameter(recipe)
    dense = Stage("dense", 1.0, wire, reduction or reductions(recipe)[0])
    match exchange.method:
        case "gradients":
            all_stages = [dense]
        case "largest_chunks":
            share = round(exchange.dense * phase.steps) / phase.steps
            all_stages = [
                Stage("dense", share, wire, "ring", chunk=exchange.chunk),
                Stage("chunks", 1 - share, wire, "ring", fraction=exchange.fraction, chunk=exchange.chunk),
            ]
        case "parameters":
            all_stages = [_local(after=(1 + slots) / exchange.interval)]
        case "mt_dao":
            all_stages = [_local(after=sum(1 / interval for interval in exchange.intervals))]
        case "dreamddp":
            all_stages = [_local(meanwhile=1 / exchange.interval, after=(1 + slots) / exchange.full_interval)]
        case _:
            all_stages = _signs_stages(recipe, phase, dense)
    return [stage for stage in all_stages if stage.share > 0]


def _slots_a_parameter(recipe: Recipe) -> float:
    """Slots per parameter of pre-training: numbers in slots over numbers in parameters."""
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    return slot_numbers(recipe, shapes) / sum(map(math.prod, shapes.values()))


def part_size(numbers: int, ranks: int) -> int:
    """How many sums a rank makes in a two-step sum: whole blocks; the last rank's part ends with padding."""
    return math.ceil(numbers / (ranks * BLOCK)) * BLOCK


def _local(**sums: float) -> Stage:
    return Stage("local", 1.0, "float32", "ring", beside=False, **sums)


def _signs_stages(recipe: Recipe, phase: Phase, dense: Stage) -> list[Stage]:
    """See exchange/compressed/stages.py and exchange/compressed/zero_one_adam.py."""
    exchange, steps = recipe.exchange, phase.steps
    share = AUTO_DENSE if exchange.dense == "auto" else exchange.dense
    learning = min(steps, max(1, *(whole_steps(steps, fraction) for fraction in (share, phase.warmup))))
    wire, reduction = ("signs", "two_step") if exchange.encoding == "signs" else ("float32", "ring")
    if exchange.method != "zero_one_adam":
        after = Stage("compressed", (steps - learning) / steps, wire, reduction)
        return [_with_share(dense, learning / steps), after]
    warm = 0 if exchange.form == "published" else whole_steps(steps, phase.warmup)
    updates = warm + _v_updates(learning - warm, exchange.variance_updates)
    local = steps - learning
    syncs = _syncs(phase, learning + 1, recipe.optimizer.decay_power, exchange.interval)
    return [
        _with_share(dense, updates / steps),
        Stage("compressed", (learning - updates) / steps, wire, reduction),
        Stage("local", local / steps, wire, reduction, beside=False, after=syncs / max(1, local)),
    ]


def _with_share(stage: Stage, share: float) -> Stage:
    return Stage(stage.name, share, stage.wire, stage.reduction)


def _v_updates(steps: int, updates: int) -> int:
    """How many of the first `steps` steps update 0/1 Adam's v: `updates` times each step, then every second, ..."""
    done, interval = 0, 1
    while steps > interval * updates:
        done, steps, interval = done + updates, steps - interval * updates, 2 * interval
    return done + steps // interval


def _syncs(phase: Phase, first: int, power: float, most: int) -> float:
    """Number of 0/1 Adam's syncs from step `first` of the phase to its end; the learning rate must not rise there."""
    syncs, step = 0.0, first
    while step <= phase.steps:
        period = sync_period(phase, step, power, most)
        # The first step with a longer period.
        end = bisect.bisect_right(
            range(phase.steps + 1), period, lo=step, key=lambda later_step: sync_period(phase, later_step, power, most)
        )
        syncs, step = syncs + (end - step) / period, end
    return syncs
