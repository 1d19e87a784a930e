"""The sum of a bucket over ranks in two steps, each of which sends encoded numbers.

    y_i = x_i + e_i                                   e_i: what rank i still owes of former steps
    all-to-all: rank j gets its part of each rank's y_i, encoded; e_i = y_i - what was sent
    z_j = sum over i of what came from i + s_j        in float32, in the order of ranks; s_j: what rank j owes
    all-gather: every rank gets the parts z_j, encoded; s_j = z_j - what was sent

(DeepSpeed's compressed all-reduce; Tang et al. 2021, arXiv 2102.02888.) The result is the same bits on all ranks,
whatever the timing. Over steps, the sum of results is the sum of all x_i less what is owed in the end: without errors
(None) what rounding loses is lost.

Where hosts have several ranks, those of a host sum at full width first and take a part each, which goes to the ranks
of the same place in the other hosts alone, so that a number leaves a host once, encoded; then the host's ranks gather.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.encodings import BLOCK, Encoding, encode_owing
from bert_horovod.runtime.xla import compiled


class Errors(NamedTuple):
    """What a rank owes, float32."""

    worker: tf.Tensor  # [across, part]: of what it sends
    server: tf.Tensor  # [part]: of the sums that it makes


class TwoStep:
    """Sums one bucket.

    Args:
        world: the ranks.
        numbers: of the bucket.
        name: of its collectives.
    """

    def __init__(self, world: World, numbers: int, name: str) -> None:
        self._inside, self._across = world.hosts
        self._world_size = world.size
        self._numbers = numbers
        self._name = name
        parts = self._inside.size * self._across.size
        self.part = math.ceil(numbers / (parts * BLOCK)) * BLOCK  # numbers of a rank's own sums

    @property
    def worker_shape(self) -> tuple[int, int]:
        """Of Errors.worker."""
        return self._across.size, self.part

    @property
    def padded(self) -> int:
        """Numbers with the zeros behind them that make equal parts."""
        return self._inside.size * self._across.size * self.part

    def sent_bytes(self, encoding: Encoding) -> float:
        """Bytes that a rank sends to other hosts for one sum."""
        return 2 * (self._across.size - 1) * encoding.sent_bytes(self.part)

    def sum(
        self, values: tf.Tensor, encoding: Encoding, errors: Errors | None = None
    ) -> tuple[tf.Tensor, Errors | None]:
        """The sum over ranks of float32 [numbers], and what is owed after it, which the caller keeps or drops.

        In a world of one nothing is encoded.
        """
        if self._world_size == 1:
            return values, errors
        gathered, errors = self.sum_encoded(values, encoding, errors)
        return tf.reshape(encoding.decode(gathered), [-1])[: self._numbers], errors

    def sum_encoded(
        self, values: tf.Tensor, encoding: Encoding, errors: Errors | None = None
    ) -> tuple[tf.Tensor, Errors | None]:
        """As `sum`, in a world of several, but the sum is as it came: [parts, width], what the encoding decodes.

        Args:
            values: float32 [numbers] or, with zeros behind, [padded]; of Float16 also halves.
            encoding: of what crosses the wire.
            errors: what is owed; None: what rounding loses is lost.
        """
        inside, across = self._inside, self._across
        if values.shape[0] != self.padded:
            values = tf.pad(values, [[0, self.padded - self._numbers]])
        if inside.size > 1:
            values = inside.all_reduce(tf.cast(values, tf.float32), f"{self._name}.inside")
            values = tf.reshape(values, [inside.size, -1])[inside.rank]
        mine = tf.reshape(values, [across.size, self.part])
        sent, worker = _encode(encoding, mine, errors and errors.worker)
        name = f"{self._name}.parts"
        if across.size == 2:
            came = self._by_rank(sent[across.rank], across.swap(sent[1 - across.rank], name))
        else:
            came = tf.ensure_shape(across.all_to_all(sent, name), sent.shape)
        sums = _sum(encoding)(came)
        sums_sent, server = _encode(encoding, sums, errors and errors.server[None])
        name = f"{self._name}.sums"
        if across.size == 2:
            gathered = self._by_rank(sums_sent[0], across.swap(sums_sent[0], name))
        else:
            gathered = tf.ensure_shape(across.all_gather(sums_sent, name), sent.shape)
        if inside.size > 1:
            gathered = inside.all_gather(gathered, f"{self._name}.host")
            gathered = tf.ensure_shape(gathered, [inside.size * across.size, sent.shape[1]])
        return gathered, errors and Errors(worker, server[0])

    def _by_rank(self, mine: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """This rank's and the other's [n] of two hosts, in their order."""
        return tf.stack([mine, other] if self._across.rank == 0 else [other, mine])


def _encode(encoding: Encoding, values: tf.Tensor, owed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """What is sent, and what is owed then; None stays None."""
    if owed is None:
        return encoding.encode(values)[0], None
    return encode_owing(encoding, values, owed)


@functools.cache
def _sum(encoding: Encoding) -> Callable[[tf.Tensor], tf.Tensor]:
    """Of rows that are encoded: their sum in the order of rows, so that its rounding is the same on every machine.

    Decoding and adding are one pass.
    """

    def sum_rows(sent: tf.Tensor) -> tf.Tensor:
        rows = tf.unstack(encoding.decode(sent))
        total = rows[0]
        for row in rows[1:]:
            total += row
        return total[None]

    return compiled(sum_rows)
