"""Packed rows as the attention kernels read them."""

from __future__ import annotations

from typing import NamedTuple

from bert_horovod.model.gpu_kernels.catalogue import BLOCK
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled


class KernelRows(NamedTuple):
    """The sequences of a micro-batch's rows; kernels skip blocks that hold only other sequences."""

    sequences: tf.Tensor  # int32 [rows, length]: sequence_ids, 0 is padding
    reach: tf.Tensor  # int32 [rows, length / BLOCK, 2]: see reach_of


def kernel_rows(sequences: tf.Tensor) -> KernelRows:
    """The rows with `sequence_ids` int32 [rows, length]; BLOCK divides the length."""
    return KernelRows(sequences, compiled(reach_of)(sequences))


def reach_of(sequences: tf.Tensor) -> tf.Tensor:
    """For each block of BLOCK positions the first block and the block after the last one that it may attend to.

    Blocks are compared by the range of their sequences' numbers, so that this is exact where numbers grow along a row
    and padding comes last, and never too little. int32 [rows, length] to int32 [rows, length / BLOCK, 2].
    """
    rows, length = sequences.shape
    count = length // BLOCK
    numbers = tf.where(tf.equal(sequences, 0), sequences.dtype.max, sequences)
    blocks = tf.reshape(numbers, [rows, count, BLOCK])
    low, high = tf.reduce_min(blocks, -1), tf.reduce_max(blocks, -1)  # (rows, count)
    meet = (low[:, :, None] <= high[:, None, :]) & (low[:, None, :] <= high[:, :, None])  # (rows, count, count)
    each = tf.range(count)
    first = tf.reduce_min(tf.where(meet, each, count), -1)
    end = tf.reduce_max(tf.where(meet, each + 1, 0), -1)
    return tf.stack([first, end], -1)
