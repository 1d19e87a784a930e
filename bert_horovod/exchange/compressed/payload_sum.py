"""The sum of one flat payload over ranks, on any wire; where hosts have several ranks, these sum first.

float32 and float16 numbers are summed by ring. float16 numbers are scaled by a maximum of the last sums, as
exchange/dense/reducer.py does. int8 numbers are summed in two steps (exchange/two_step.py).
"""

from __future__ import annotations

from bert_horovod.collectives.world import World
from bert_horovod.costs.link import NUMBER_BYTES
from bert_horovod.exchange.dense.reducer import next_maxima, wire_scale
from bert_horovod.exchange.encodings import Int8
from bert_horovod.exchange.two_step import Errors, TwoStep
from bert_horovod.runtime import lazy_tensorflow as tf


class PayloadSum:
    """Sums float32 [numbers].

    `maximum` (float32 scalar) is the largest magnitude of the last sum, or half of what it was before; the float16 wire
    computes its scale from it. It is equal on all ranks, and part of a checkpoint. It falls slowly, because the first
    factors have little of a matrix, whose basis is random: sqrt(rank / rows) of it.

    Args:
        world: the ranks.
        numbers: how many the payload has.
        wire: float32, float16 or int8.
        name: prefix of the names of its collectives.
    """

    def __init__(self, world: World, numbers: int, wire: str, name: str) -> None:
        self._world, self._numbers, self.wire, self._name = world, numbers, wire, name
        self._two_step = TwoStep(world, numbers, name) if wire == "int8" else None
        self.maximum = tf.Variable(1.0, trainable=False)

    def sum(self, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The sum over ranks, float32 [numbers], and what rounding took from this rank's payload; None: nothing.

        The sum is that of all payloads minus what rounding took from them on all ranks. A number that is not finite on
        one rank makes the sum not finite on all.
        """
        if self._two_step is not None:
            return self._sum_in_int8(payload)
        if self.wire == "float32":
            return self._by_ring(payload), None
        scale = wire_scale(self.maximum)
        total = tf.cast(self._by_ring(tf.cast(payload * scale, tf.float16)), tf.float32) / scale
        found = next_maxima(self.maximum, tf.reduce_max(tf.abs(total)))
        self.maximum.assign(tf.maximum(found, self.maximum / 2))
        return total, None

    @property
    def bytes_reduced(self) -> float:
        """Bytes of the payload on the wire."""
        if self._two_step is not None:
            return float(Int8().sent_bytes(self._two_step.padded))
        return NUMBER_BYTES[self.wire] * self._numbers

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends; in int8 those to other hosts."""
        if self._two_step is not None:
            return self._two_step.sent_bytes(Int8())
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced

    def _by_ring(self, numbers: tf.Tensor) -> tf.Tensor:
        """The sum over ranks by ring, first inside each host: a part of it goes from each rank to the other hosts."""
        inside, across = self._world.join_hosts()
        if inside.size == 1 or across.size == 1:
            return self._world.all_reduce(numbers, self._name)
        numbers = inside.all_reduce(numbers, f"{self._name}.inside")
        padded = tf.pad(numbers, [[0, -self._numbers % inside.size]])
        part = across.all_reduce(tf.reshape(padded, [inside.size, -1])[inside.rank], f"{self._name}.across")
        return tf.ensure_shape(inside.all_gather(part, f"{self._name}.host"), padded.shape)[: self._numbers]

    def _sum_in_int8(self, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (inside, across), sums = self._world.join_hosts(), self._two_step
        none = Errors(tf.zeros(sums.worker_shape), tf.zeros([sums.part]))
        total, errors = sums.sum(payload, Int8(), none)
        own_sums = tf.one_hot(across.rank, across.size)[:, None]  # the row of the sums that this rank makes
        lost = errors.worker + own_sums * errors.server
        if inside.size > 1:  # this rank sends one part of the host's sum
            lost = tf.one_hot(inside.rank, inside.size)[:, None] * tf.reshape(lost, [1, -1])
        return total, tf.reshape(lost, [-1])[: self._numbers]
