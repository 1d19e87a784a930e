"""Sums of flat buckets over ranks as signs, with error feedback; all 1-bit methods use them.

For a moment m with the second moment v, the numbers that are sent (the payload) have one of two forms
(exchange.form):

    normalized   m / (sqrt(v) + eps), with a scale a tensor: this is the update itself, so no number moves further than
                 the scale; numbers with v = 0 are 0
    published    m, with one scale a bucket, the root mean square (Tang et al. 2021, arXiv 2102.02888)

Numbers with v = 0, such as positions beyond the phase's length, have had no gradient: they stay 0 in both forms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.compressed.signs import Signs
from bert_horovod.exchange.encodings import BLOCK
from bert_horovod.exchange.two_step import Errors, TwoStep
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

_WORKER, _SERVER = "error.worker.", "error.server."


class Form(NamedTuple):
    """What is sent of a moment m with the second moment v; elementwise, to be called in compiled functions."""

    name: str  # exchange.form
    epsilon: float

    def payload(self, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """The numbers to send of m."""
        return tf.where(v > 0, m / (tf.sqrt(v) + self.epsilon), 0.0) if self.name == "normalized" else m

    def moment(self, payload: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """m from the numbers that were sent: the inverse of `payload`; 0 where v is 0."""
        return tf.where(v > 0, payload * (tf.sqrt(v) + self.epsilon) if self.name == "normalized" else payload, 0.0)


class CompressedSums:
    """The sums of a plan's buckets. Whole buckets are copied only to be sent: all else works on their tensors.

    Args:
        recipe: the run's.
        world: the ranks.
        shapes: of the parameters, by name.
        plan: the buckets.
        name: prefix of the collectives' names.
        fused: whether XLA compiles the functions that read and write whole buckets.
    """

    def __init__(
        self, recipe: Recipe, world: World, shapes: dict[str, tuple[int, ...]], plan: BucketPlan, name: str, fused: bool
    ) -> None:
        self.compiled = compiled if fused else lambda function: function
        self._fused = fused
        self._world, self._shapes, self._buckets, self._name = world, shapes, plan.buckets, name
        self.form = Form(recipe.exchange.form, recipe.optimizer.epsilon)
        self._encoded = world.size > 1
        # Of each bucket's tensors, in numbers.
        self.sizes = [tuple(math.prod(shapes[name]) for name in bucket) for bucket in plan.buckets]
        self._two_steps = [TwoStep(world, sum(sizes), f"{name}.{i}") for i, sizes in enumerate(self.sizes)]
        self._signs = [self._signs_of(i) for i in range(len(self.sizes))]
        self._errors: list[Errors | None] = [None] * len(self.sizes)

    def begin(self, state, fresh: bool) -> None:
        """Use this rank's errors from the state (runs.state.TrainingState), or start with zeros if `fresh`."""
        if fresh:  # another phase's errors may belong to other buckets
            for name in [name for name in state.per_rank if name.startswith((_WORKER, _SERVER))]:
                del state.per_rank[name]
        if self._encoded:
            self._errors = [
                Errors(state.own(f"{_WORKER}{i}", two_step.worker_shape), state.own(f"{_SERVER}{i}", (two_step.part,)))
                for i, two_step in enumerate(self._two_steps)
            ]

    def forget(self) -> None:
        """Set all errors to zero."""
        self.assign([errors and Errors(*(tf.zeros_like(error) for error in errors)) for errors in self._errors])

    def flat(self, i: int, tensors: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """The tensors of bucket i, each flat: float32 [numbers of the tensor]."""
        return [tf.cast(tf.reshape(tensors[name], [-1]), tf.float32) for name in self._buckets[i]]

    def named(self, i: int, flat: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tensors by parameter from the flat tensors of bucket i: the inverse of `flat`."""
        return {name: tf.reshape(part, self._shapes[name]) for name, part in zip(self._buckets[i], flat, strict=True)}

    def joined(self, i: int, flat: list[tf.Tensor]) -> tf.Tensor:
        """The flat tensors of bucket i as one, with the zeros that pad it if it will be encoded: for `sum`."""
        padding = self._two_steps[i].padded - sum(self.sizes[i]) if self._encoded else 0
        return tf.concat([*flat, tf.zeros([padding])] if padding else flat, 0)

    def sum(self, i: int, payload: tf.Tensor) -> tuple[tf.Tensor, Errors | None]:
        """The sum over ranks of bucket i, float32 [numbers], and its new errors, for `assign`; `payload`: `joined`."""
        if not self._encoded:
            return payload, None
        errors = Errors(*(tf.convert_to_tensor(error) for error in self._errors[i]))
        worker, server = self._signs[i]
        return self._two_steps[i].sum(payload, worker, errors, server)

    def assign(self, errors: list[Errors | None]) -> None:
        """Assign the errors that `sum` returned for each bucket."""
        for variables, arrays in zip(self._errors, errors, strict=True):
            for variable, array in zip(variables or (), arrays or (), strict=True):
                variable.assign(array)

    def bytes_reduced(self) -> float:
        """Payload of one step in bytes, see exchange.base.Exchange.bytes_reduced."""
        if not self._encoded:
            return 0.0
        return sum(two_step.worker_shape[0] * Signs().sent_bytes(two_step.part) for two_step in self._two_steps)

    def wire_bytes(self) -> float:
        """Bytes that a rank sends in one step."""
        return sum(two_step.sent_bytes(Signs()) for two_step in self._two_steps) if self._encoded else 0.0

    def _signs_of(self, i: int) -> tuple[Signs, Signs]:
        """Two encodings for bucket i: one of the rows that this rank sends, one of the sums that it makes."""
        numbers, sums = sum(self.sizes[i]), self._two_steps[i]
        blocks = self._world.size * sums.part // BLOCK
        first = BLOCK * np.arange(blocks)
        counted = np.clip(numbers - first, 0, BLOCK)
        if self.form.name == "published":
            groups = np.zeros(blocks, np.int32)
        else:
            # A block belongs to the tensor of its middle number.
            groups = np.searchsorted(np.cumsum(self.sizes[i]), first + BLOCK // 2, side="right")
            groups = np.minimum(groups, len(self.sizes[i]) - 1).astype(np.int32)
        return tuple(
            Signs(group, number, self.form.name == "published", self._fused)
            for group, number in zip(sums.of_rank(groups), sums.of_rank(counted), strict=True)
        )
