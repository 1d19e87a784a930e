"""The exchange of gradients in low rank, with error feedback: PowerSGD (Vogels et al. 2019, arXiv 1905.13727).

This is the form with one sum a step, in which the two factors of a matrix take turns (also published as ACP-SGD, arXiv
2306.08881). g_i is rank i's share of the gradient of a matrix, [rows, columns]; e_i is what rank i owes:

    M_i = g_i + e_i
    right step    B: basis of L    R_i = M_i^T B    R = sum over i of R_i    g = B R^T    e_i = M_i - B R_i^T
    left step     B: basis of R    L_i = M_i B      L = sum over i of L_i    g = L B^T    e_i = M_i - L_i B^T

L [rows, rank] is the left factor, R [columns, rank] the right one. L is random at the start of a phase, and the same
on all ranks; the first step is a right one. A basis is orthonormal, and computed from the factor of the step before,
while forward runs. In the published form each step makes both factors, and the second sum waits for the first one.

Vectors, and matrices too small to gain, are sent as they are, behind the factors of their bucket, so that they need no
sum of their own. exchange.words says how the word embeddings are sent, whose gradient is sparse in rows.

In the first steps of a phase, exchange.dense, all numbers are sent. What int8 takes from factors and gradients goes to
e_i too. g is clipped by its own norm and given to the ordinary optimizer. If a number is not finite on one rank, its
row or column of g is not finite on all: the step is skipped, and no e_i and no factor changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.compressed.largest_chunks import LargestChunksSettings, bits_of, choose, choose_largest
from bert_horovod.exchange.compressed.payload_parts import (
    LEFT,
    RIGHT,
    ChunksPart,
    LowRankPart,
    MadePayload,
    PayloadSum,
    WholePart,
    chunked,
    read_all,
)
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.exchange.owed import OF_PARAMETER
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.parameters import WORD_EMBEDDINGS, initial_values
from bert_horovod.optimizers.schedule import whole_steps
from bert_horovod.recipe.fields import ReadIf, named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock

DENSE = "dense"
_KINDS = (DENSE, RIGHT, LEFT)  # of steps
Part = WholePart | LowRankPart | ChunksPart
Payload = tuple[PayloadSum, list[Part]]
_WAYS = {"int8": "two_step"}  # to sum on a wire; others: ring


class PowerSgdExchange(Exchange):
    """See exchange.base.Exchange. Rank i's e_i is the per-rank state `residual/NAME`; the factors are slots."""

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        assert plan.rows is None, "a table is whole in its bucket"
        super().__init__(recipe, world, state, updater, plan)
        self._settings = recipe.exchange
        self._owed: dict[str, tf.Variable] = {}
        self._chosen: tf.Variable | None = None  # the next step's chunks of the word embeddings
        with tf.device("/CPU:0"):
            self._step = tf.Variable(0, trainable=False)  # steps of the run that are done
            self._dense_until = tf.Variable(0, trainable=False)  # the last step with dense gradients
        self._payloads: dict[str, list[list[Payload]]] = {}  # by kind of step, then by bucket
        if world.size == 1:
            return
        for name, shape in self._shapes.items():
            if self._settings.keeps(recipe, name, shape):
                self._owed[name] = state.own(OF_PARAMETER + name, shape)
        if self._settings.words == "largest_chunks" and WORD_EMBEDDINGS in self._shapes:
            sent = self._settings.chunks(math.prod(self._shapes[WORD_EMBEDDINGS]))[1]
            self._chosen = tf.Variable(tf.range(sent), trainable=False)  # until norms are known, the first ones
        for kind in _KINDS:
            self._payloads[kind] = [self._payloads_of(i, kind) for i in range(len(plan.buckets))]

    def begin(self, first: int, last: int) -> None:
        progress, recipe = self._state.progress, self._recipe
        self._step.assign(progress.step)
        self._dense_until.assign(first - 1 + self._settings.dense_steps(recipe.phase[recipe.phase_at(first)]))
        kept = progress.exchange
        for kind, i, payload_sum in self._scaled():
            maxima = kept.get("maxima", {}).get(kind, {})
            payload_sum.maximum.assign(max(maxima.get(name, 1.0) for name in self.plan.buckets[i]))
        if self._chosen is not None and "chosen" in kept:
            choose(self._chosen, self._chunks, kept["chosen"])
        if progress.step + 1 == first:
            for slot in (LEFT, RIGHT):
                factors = self._state.slots[slot]
                shapes = {f"{slot}/{name}": tuple(factor.shape) for name, factor in factors.items()}
                initial = initial_values(shapes, 1.0, recipe.data.seed)
                for factor, array in zip(factors.values(), initial.values(), strict=True):
                    factor.assign(array)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        gradients = {name: tf.cast(gradient, tf.float32) for name, gradient in whole(gradients, lookups).items()}
        none = tf.zeros([0], tf.float64)
        made = MadePayload(gradients, {}, {}, tf.zeros([0]), none, none)
        if self._world.size > 1:
            after = self._step.assign_add(1) - self._dense_until
            kind = tf.where(after <= 0, 0, 1 + (after - 1) % 2)  # an index of _KINDS
            made = tf.switch_case(kind, [partial(self._summed, kind, gradients, clock) for kind in _KINDS])
        reduced_s = clock(list(made.gradients.values()))
        grouped = self._updater.grouped(made.gradients)
        norm = self._updater.norm(grouped)
        finite = tf.math.is_finite(norm + tf.reduce_sum(made.norms))

        def apply() -> tf.Tensor:
            for name, owed in made.owed.items():
                self._owed[name].assign(owed)
            for slot, factors in made.factors.items():
                for name, factor in factors.items():
                    self._state.slots[slot][name].assign(factor)
            if self._chosen is not None:
                choose_largest(self._chosen, made.norms)
            return clock(self._updater.apply(grouped, norm, inputs))

        updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        return Update(finite, {"gradient_norm": norm}, made.ready_s, made.done_s, reduced_s, updated_s)

    def to_progress(self) -> None:
        maxima: dict[str, dict[str, float]] = {kind: {} for kind in _KINDS}
        for kind, i, payload_sum in self._scaled():
            maxima[kind] |= dict.fromkeys(self.plan.buckets[i], float(payload_sum.maximum.numpy()))
        self._state.progress.exchange = {"maxima": maxima}
        if self._chosen is not None:
            self._state.progress.exchange["chosen"] = bits_of(self._chosen, self._chunks)

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload of the next step; after the dense steps the mean of a right and a left one."""
        return self._mean(lambda payload_sum: payload_sum.bytes_reduced)

    def wire_bytes(self, rows: int = 0) -> float:
        return self._mean(lambda payload_sum: payload_sum.wire_bytes)

    def _mean(self, count: Callable[[PayloadSum], float]) -> float:
        """The mean of a step's count over the kinds of steps that may come next, as bytes_reduced says."""
        if self._world.size == 1:
            return 0.0
        dense = self._state.progress.step < self._dense_until.numpy()
        kinds = (DENSE,) if dense else (RIGHT, LEFT)
        payloads = (payload for kind in kinds for bucket in self._payloads[kind] for payload in bucket)
        return sum(count(payload_sum) for payload_sum, _ in payloads) / len(kinds)

    @property
    def _chunks(self) -> int:
        return self._settings.chunks(math.prod(self._shapes[WORD_EMBEDDINGS]))[0]

    def _scaled(self) -> Iterator[tuple[str, int, PayloadSum]]:
        """The sums of float16 numbers, each with its kind of step and its bucket."""
        for kind, buckets in self._payloads.items():
            for i, payloads in enumerate(buckets):
                yield from ((kind, i, payload_sum) for payload_sum, _ in payloads if payload_sum.wire == "float16")

    def _payloads_of(self, i: int, kind: str) -> list[Payload]:
        """What is summed of bucket i in this kind of step: its parts, by sum."""
        settings, wire = self._settings, self._recipe.numerics.wire
        bucket = {name: self._shapes[name] for name in self.plan.buckets[i]}
        name = f"{kind}.{i}"
        if kind == DENSE:
            wire = settings.wire_of_dense(self._recipe)
            part = WholePart(bucket, owing=wire == "int8")
            return [(PayloadSum(self._world, part.numbers, wire, name), [part])]
        payloads: list[Payload] = []
        parts: list[Part] = [self._low_rank(names, kind) for names in self._matrices(bucket)]
        others = {name: shape for name, shape in bucket.items() if not settings.rank_of(name, shape)}
        if WORD_EMBEDDINGS in others and settings.words != "low_rank":
            words = others.pop(WORD_EMBEDDINGS)
            if settings.words == "int8":
                part = WholePart({WORD_EMBEDDINGS: words}, owing=True)
                payloads.append((PayloadSum(self._world, part.numbers, "int8", f"{name}.words"), [part]))
            else:
                parts.append(ChunksPart(WORD_EMBEDDINGS, words, settings.chunk, self._chosen))
        if others:
            parts.append(WholePart(others, owing=next(iter(others)) in self._owed))
        if parts:
            numbers = sum(part.numbers for part in parts)
            payloads.insert(0, (PayloadSum(self._world, numbers, wire, name), parts))
        return payloads

    def _matrices(self, bucket: dict[str, Shape]) -> list[list[str]]:
        """The matrices of a bucket that are sent in low rank, in lists of those that are multiplied as one batch.

        On a GPU these have equal shapes. On a CPU each is alone, because it takes longer to copy them to one tensor.
        """
        batches: dict[tuple, list[str]] = {}
        for name, shape in bucket.items():
            if rank := self._settings.rank_of(name, shape):
                batches.setdefault((*shape, rank) if self._updater.at_once else (name,), []).append(name)
        return list(batches.values())

    def _low_rank(self, names: list[str], summed: str) -> LowRankPart:
        shape, updater = self._shapes[names[0]], self._updater
        rank = self._settings.rank_of(names[0], shape)
        return LowRankPart(names, shape, rank, summed, self._state.slots, updater.fused, updater.at_once)

    def _summed(self, kind: str, gradients: Gradients, clock: Clock) -> MadePayload:
        """Sum all buckets over ranks, each as soon as its gradients exist."""
        owed = read_all(self._owed)
        factors = {slot: read_all(self._state.slots[slot]) for slot in (LEFT, RIGHT)}
        made, after, norms, spans = {}, dict(owed), tf.zeros([0]), []
        for payloads in self._payloads[kind]:
            begun = [[part.begin(gradients, owed) for part in parts] for _, parts in payloads]
            own = [tf.concat([numbers for numbers, _ in parts], 0) for parts in begun]
            ready_s = clock(own)
            sums = [payload_sum.sum(numbers) for (payload_sum, _), numbers in zip(payloads, own, strict=True)]
            spans.append((ready_s, clock([total for total, _ in sums])))
            for (_, parts), numbers_and_finish, (total, lost) in zip(payloads, begun, sums, strict=True):
                sizes = [part.numbers for part in parts]
                totals = tf.split(total, sizes)
                losses = [None] * len(parts) if lost is None else tf.split(lost, sizes)
                for (_, finish), part_total, part_lost in zip(numbers_and_finish, totals, losses, strict=True):
                    decoded = finish(part_total, part_lost)
                    made |= decoded.gradients
                    after |= decoded.owed
                    if decoded.factors:
                        factors[kind] |= decoded.factors
                    norms = norms if decoded.norms is None else decoded.norms
        if kind == DENSE and self._chosen is not None:
            norms = tf.reduce_mean(tf.abs(chunked(made[WORD_EMBEDDINGS], self._settings.chunk)), 1)
        ready_s, done_s = (tf.stack(kind_of_time) for kind_of_time in zip(*spans, strict=True))
        return MadePayload({name: made[name] for name in gradients}, after, factors, norms, ready_s, done_s)


_SOME_DENSE = ReadIf(
    "dense steps: exchange.dense above 0",
    lambda recipe: any(recipe.exchange.dense_steps(phase) for phase in recipe.phase),
)


@dataclass(frozen=True)
class PowerSgdSettings(ExchangeMethod):
    """Gradients in low rank, and what former steps left out of them; any optimizer."""

    method: str = named("powersgd")
    code: ClassVar[type] = PowerSgdExchange
    # Rank in which the gradients of matrices are sent. A matrix of n rows and m columns is sent as it is if
    # 2 rank (n + m) >= n m
    rank: int = setting(4, minimum=1, maximum=64)
    # Fraction of each phase's steps, from its start, with dense gradients; the publication advises at least 0.1
    # (arXiv 1905.13727). warmup: the learning rate's warm-up
    dense: float | Literal["warmup"] = setting("warmup", minimum=0, maximum=1)
    # Numbers on the wire in the dense steps. same: as numerics.wire
    dense_wire: str = setting("same", choices=("same", "float32", "float16", "int8"), read_if=_SOME_DENSE)
    # How the word embeddings are sent, whose gradient is sparse in rows. low_rank: as other matrices;
    # largest_chunks: as exchange.method = "largest_chunks" does; int8: all numbers, in int8
    words: str = setting("low_rank", choices=("low_rank", "largest_chunks", "int8"))

    fraction: ClassVar[float] = LargestChunksSettings.fraction  # of the word embeddings' chunks
    chunk: ClassVar[int] = LargestChunksSettings.chunk
    slots: ClassVar[tuple[str, ...]] = (LEFT, RIGHT)
    # Buckets are sent during backward, but a measured plan would assume that all bytes are sent, and could differ in a
    # resumed run.
    overlaps: ClassVar[bool] = False
    cycle: ClassVar[int] = 2  # right factors, then left ones
    price: ClassVar[str] = (
        "sends gradients in low rank, and what a step leaves out in later steps; BERT-mini, 400 steps of rank 4: 0.08 "
        "nats behind float32, 0.06 with exchange.words = largest_chunks"
    )

    def rank_of(self, name: str, shape: Shape) -> int:
        """The rank in which a parameter of this name and shape is sent; 0: it is not sent in low rank."""
        rank = self.rank if name != WORD_EMBEDDINGS or self.words == "low_rank" else 0
        return rank if len(shape) == 2 and 2 * rank * sum(shape) < math.prod(shape) else 0

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        rank = self.rank_of(name, shape)
        return (shape[slot == RIGHT], rank) if rank else None

    def dense_steps(self, phase: Phase) -> int:
        """Steps of the phase with dense gradients."""
        return whole_steps(phase.steps, phase.warmup if self.dense == "warmup" else self.dense)

    def wire_of_dense(self, recipe: Recipe) -> str:
        """The wire of the dense steps."""
        return recipe.numerics.wire if self.dense_wire == "same" else self.dense_wire

    def keeps(self, recipe: Recipe, name: str, shape: Shape) -> bool:
        """Whether each rank keeps what it owes of a parameter: what a low rank, chunks or int8 left out."""
        int8 = "int8" in (recipe.numerics.wire, self.wire_of_dense(recipe))
        return int8 or (name == WORD_EMBEDDINGS and self.words != "low_rank") or self.rank_of(name, shape) > 0

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(math.prod(shape) for name, shape in shapes.items() if self.keeps(recipe, name, shape))

    def chunks(self, numbers: int) -> tuple[int, int]:
        """Chunks of the word embeddings with so many numbers, and how many of them a step sends."""
        count = -(-numbers // self.chunk)
        return count, math.ceil(self.fraction * count)

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        dense, wire, wire_of_dense = self.dense_steps(phase), recipe.numerics.wire, self.wire_of_dense(recipe)
        sent = {name: self._sent(name, shape, wire) for name, shape in shapes.items()}
        return [
            Stage("dense", dense / phase.steps, wire_of_dense, _WAYS.get(wire_of_dense, "ring")),
            Stage("low rank", (phase.steps - dense) / phase.steps, wire, _WAYS.get(wire, "ring"), sent=sent),
        ]

    def _sent(self, name: str, shape: Shape, wire: str) -> float:
        """Numbers of a parameter in a payload after the dense steps, the mean of a step for each side."""
        numbers, rank = math.prod(shape), self.rank_of(name, shape)
        if rank:
            return rank * sum(shape) / 2
        if name == WORD_EMBEDDINGS and self.words == "largest_chunks":
            count, sent = self.chunks(numbers)
            return sent * self.chunk + count
        if name == WORD_EMBEDDINGS and self.words == "int8":
            return numbers * NUMBER_BYTES["int8"] / NUMBER_BYTES[wire]
        return numbers

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return True

    def may_sum_in_two_steps(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions or "int8" in (self.dense_wire, self.words)

    def check(self, recipe: Recipe) -> None:
        if recipe.execution.reduction == "two_step" and recipe.numerics.wire != "int8":
            raise UserError(
                f"execution.reduction = 'two_step': exchange.method = {self.method!r} sums "
                f"{recipe.numerics.wire} numbers by ring; expected auto or ring"
            )

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe | None:
        return replace(recipe, exchange=cls(), numerics=replace(recipe.numerics, wire="float16"))
