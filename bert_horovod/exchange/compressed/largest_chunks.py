"""The exchange of gradients that sends only the largest chunks; the residuals of the others wait for later steps.

GradientFlow's coarse-grained sparse communication (Sun et al. 2019, arXiv 1902.06855), for any optimizer. A bucket is
cut into chunks of 256 numbers, the last one padded with zeros; g_i is rank i's share of the gradient:

    r_i <- r_i + g_i
    g   <- sum over i of r_i in the chosen chunks, 0 elsewhere            one all-reduce a bucket, beside backward
    r_i <- 0 in the chosen chunks
    n   <- sum over i of ||r_i + g_i||_1, chunk by chunk                  in the same all-reduce, after the chunks
    the tenth of the chunks with the largest n are those of the next step, equal on all ranks

So no indices are sent, and no all-reduce waits for another one. n estimates the norms of the next step's r_i, as if its
gradient were equal to this one. The norms of r_i alone would never choose a chunk in two steps in succession, even if
its gradient is large.

g is clipped by its own norm and given to the ordinary optimizer. The published rule corrects the momentum of SGD; this
program's sgd has none. In the first steps of a phase, the share exchange.dense, all chunks are sent.

If a number is not finite, its chunk's n is not finite on all ranks, even if the chunk is not sent: the step is skipped
and no r_i changes. With numerics.wire = float16, reducer.py's scales apply to chunks and n (over the chunk's size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.dense.reducer import GradientReducer, whole
from bert_horovod.exchange.updater import Updater
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock


class LargestChunksExchange(Exchange):
    """See exchange.base.Exchange; the arguments are those of GradientExchange.

    Rank i's r_i of bucket k is the per-rank state `residual.k`, [numbers of the bucket, rounded up to whole chunks].
    """

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        assert plan.rows is None, "a table is whole in its bucket"
        super().__init__(recipe, world, state, updater, plan)
        settings = recipe.exchange
        self._chunk, self._dense_share = settings.chunk, settings.dense
        self._reducer = GradientReducer(world, self._shapes, plan, recipe.numerics.wire)
        self._wire_bytes = tf.as_dtype(recipe.numerics.wire).size
        numbers = [sum(math.prod(self._shapes[name]) for name in bucket) for bucket in plan.buckets]
        self._counts = [-(-bucket_numbers // self._chunk) for bucket_numbers in numbers]  # number of chunks, by bucket
        sent = [math.ceil(settings.fraction * count) for count in self._counts]
        # Indices of the chunks that the next step sends, in rising order; the first chunks until norms are known.
        self._chosen = [tf.Variable(tf.range(count), trainable=False) for count in sent]
        self._residuals = []
        if world.size > 1:
            self._residuals = [state.own(f"residual.{i}", (self._chunk * n,)) for i, n in enumerate(self._counts)]
        with tf.device("/CPU:0"):
            self._dense = tf.Variable(False, trainable=False)  # whether the next step sends all chunks
        self._dense_until = self._last = 0  # the last step that sends all chunks, and the phase's, counted in the run
        self._sends_all = False  # the same as `_dense`

    def begin(self, first: int, last: int) -> None:
        if self._world.size == 1:
            return
        progress = self._state.progress
        if progress.wire_maxima:
            self._reducer.restore_maxima(progress.wire_maxima)
        for variable, count, bits in zip(self._chosen, self._counts, progress.exchange.get("chosen", []), strict=False):
            choose(variable, count, bits)
        self._dense_until, self._last = first - 1 + round(self._dense_share * (last + 1 - first)), last
        self._sends_all = progress.step + 1 <= self._dense_until
        self._dense.assign(self._sends_all)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        gradients = whole(gradients, lookups)
        none = tf.zeros([0], tf.float64)
        sums, residuals, norms, spans = gradients, [], [], [(none, none)]
        if self._world.size > 1:
            sums, residuals, norms, spans = self._sum_largest(gradients, clock)
        reduced_s = clock(list(sums.values()))
        grouped = self._updater.grouped(sums)
        norm = self._updater.norm(grouped)
        finite = tf.math.is_finite(tf.add_n([norm, *(tf.reduce_sum(chunk_norms) for chunk_norms in norms)]))

        def apply() -> tf.Tensor:
            for i, residual in enumerate(residuals):
                self._residuals[i].assign(residual)
                choose_largest(self._chosen[i], norms[i])
            return clock(self._updater.apply(grouped, norm, inputs))

        updated_s = tf.cond(finite, apply, lambda: clock([norm]))
        ready_s, done_s = (tf.stack(kind) if residuals else none for kind in zip(*spans, strict=True))
        return Update(finite, {"gradient_norm": norm}, ready_s, done_s, reduced_s, updated_s)

    def after_step(self, step: int, loss: float) -> str:
        if self._world.size == 1:
            return ""
        sent_all, self._sends_all = self._sends_all, step + 1 <= self._dense_until
        self._dense.assign(self._sends_all)
        if sent_all and not self._sends_all and step < self._last:
            return f"exchange: the largest chunks alone are sent now, {self.bytes_reduced():,.0f} bytes a step"
        return ""

    def to_progress(self) -> None:
        progress = self._state.progress
        progress.wire_maxima = self._reducer.maxima_by_name()
        chosen = zip(self._chosen, self._counts, strict=True)
        progress.exchange = {"chosen": [bits_of(variable, count) for variable, count in chosen]}

    def bytes_reduced(self, rows: int = 0) -> float:
        """Payload of the next step, dense or chunks; see Exchange."""
        if self._world.size == 1:
            return 0.0
        sent = sum(self._counts) if self._sends_all else sum(chosen.shape[0] for chosen in self._chosen)
        return float(self._wire_bytes * (sent * self._chunk + sum(self._counts)))

    def _sum_largest(
        self, gradients: Gradients, clock: Clock
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[tf.Tensor], list[tuple[tf.Tensor, tf.Tensor]]]:
        """Sum the chosen chunks over ranks.

        Returns: sums by parameter, zeros in chunks that were not sent; then by bucket: new residuals, the chunks'
            norms, and the times (ready, done).
        """
        sums, residuals, norms, spans, reduced = {}, [], [], [], []
        for i, bucket in enumerate(self.plan.buckets):
            parts = [tf.cast(tf.reshape(gradients[name], [-1]), tf.float32) for name in bucket]
            sizes = [math.prod(self._shapes[name]) for name in bucket]
            padding = self._counts[i] * self._chunk - sum(sizes)
            gradient = tf.reshape(tf.concat([*parts, tf.zeros([padding])], 0), [-1, self._chunk])
            owed = tf.reshape(self._residuals[i], [-1, self._chunk]) + gradient
            summed = tf.cond(
                self._dense,
                lambda i=i, owed=owed, gradient=gradient: self._send(i, owed, gradient, clock, None),
                lambda i=i, owed=owed, gradient=gradient: self._send(i, owed, gradient, clock, self._chosen[i]),
            )
            total, residual, norm, flat_maximum, *span = summed
            total = tf.split(tf.reshape(total, [-1]), [*sizes, padding])
            sums |= {name: tf.reshape(part, self._shapes[name]) for name, part in zip(bucket, total[:-1], strict=True)}
            residuals.append(tf.reshape(residual, [-1]))
            norms.append(norm)
            spans.append(tuple(span))
            reduced.append(flat_maximum)
        self._reducer.follow(reduced)
        return {name: sums[name] for name in gradients}, residuals, norms, spans

    def _send(
        self, i: int, owed: tf.Tensor, gradient: tf.Tensor, clock: Clock, chosen: tf.Variable | None
    ) -> tuple[tf.Tensor, ...]:
        """Sum the chunks `chosen` (None: all) of bucket i over ranks; `owed` and `gradient` as in `packed`.

        Returns: the sum over ranks, zero in other chunks; the new r_i; the chunks' norms summed over ranks, divided by
        the chunk's size; the largest magnitude in the all-reduce; the times at which its input and its sum existed.
        """
        ids = None if chosen is None else chosen.read_value()[:, None]
        payload, left_owed = packed(owed, gradient, ids)
        flat, ready, done = self._reducer.all_reduce(payload, i, clock)
        total, norms = unpacked(flat, ids, owed.shape)
        return total, left_owed, norms, tf.reduce_max(tf.abs(flat)), ready, done


def packed(owed: tf.Tensor, gradient: tf.Tensor, ids: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Take chunks out of what a rank owes.

    Args:
        owed: r_i + g_i, float32 [chunks, chunk].
        gradient: g_i, float32 [chunks, chunk].
        ids: of the chunks to send, int32 [sent, 1]; None: all.

    Returns: the payload, float32 [numbers sent + chunks]: these chunks, then the norms of all chunks, divided by the
        chunk's size; and the new r_i, [chunks, chunk].
    """
    sent = owed if ids is None else tf.gather_nd(owed, ids)
    left_owed = tf.zeros_like(owed) if ids is None else tf.tensor_scatter_nd_update(owed, ids, tf.zeros_like(sent))
    return tf.concat([tf.reshape(sent, [-1]), tf.reduce_mean(tf.abs(left_owed + gradient), 1)], 0), left_owed


def unpacked(payload: tf.Tensor, ids: tf.Tensor | None, shape: tf.TensorShape) -> tuple[tf.Tensor, tf.Tensor]:
    """The chunks, float32 of `shape` = [chunks, chunk], and the norms, [chunks], of a payload; zero: not sent."""
    count, chunk = shape
    sent = tf.reshape(payload[:-count], [-1, chunk])
    return sent if ids is None else tf.scatter_nd(ids, sent, shape), payload[-count:]


def choose_largest(chosen: tf.Variable, norms: tf.Tensor) -> None:
    """Choose the chunks with the largest norms, float32 [chunks], as many as `chosen` has: int32, in rising order."""
    chosen.assign(tf.sort(tf.math.top_k(norms, chosen.shape[0]).indices))


def bits_of(chosen: tf.Variable, count: int) -> str:
    """Which of `count` chunks are chosen, a bit each, in hexadecimal digits: for the progress; see `choose`."""
    is_chosen = np.zeros(count, bool)
    is_chosen[chosen.numpy()] = True
    return np.packbits(is_chosen).tobytes().hex()


def choose(chosen: tf.Variable, count: int, bits: str) -> None:
    """Choose the chunks of `bits_of`; does nothing if they are not as many, because another plan has written them."""
    indices = np.flatnonzero(np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))[:count])
    if len(indices) == chosen.shape[0]:
        chosen.assign(indices)


@dataclass(frozen=True)
class LargestChunksSettings(ExchangeMethod):
    """The largest chunks of gradients and of what former steps left; any optimizer."""

    method: str = named("largest_chunks")
    code: ClassVar[type] = LargestChunksExchange
    dense: float = setting(0.2, minimum=0, maximum=1)  # fraction of each phase's steps, from its start, with all chunks

    # Fraction of the chunks that is sent. GradientFlow (arXiv 1902.06855) sent 0.1 to 0.15. On a toy model with adamw
    # the loss was higher than with all gradients: by 0.002 nats with 0.2, by 0.027 nats with 0.05
    fraction: ClassVar[float] = 0.1
    chunk: ClassVar[int] = 256  # numbers per chunk; it divides the usual hidden sizes
    wires: ClassVar[tuple[str, ...]] = ("float32", "float16")
    why_wires: ClassVar[str] = "sums its chunks by ring"
    # Buckets are sent during backward, but a measured plan would assume that all bytes are sent, and could differ in a
    # resumed run, while residuals are kept by bucket.
    overlaps: ClassVar[bool] = False

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        share, wire = round(self.dense * phase.steps) / phase.steps, recipe.numerics.wire
        return [
            Stage("dense", share, wire, "ring", chunk=self.chunk),
            Stage("chunks", 1 - share, wire, "ring", fraction=self.fraction, chunk=self.chunk),
        ]

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values()))

    def check(self, recipe: Recipe) -> None:
        if recipe.execution.reduction == "two_step":
            raise UserError(
                f"execution.reduction = 'two_step': exchange.method = {self.method!r} {self.why_wires}; expected auto "
                "or ring"
            )
