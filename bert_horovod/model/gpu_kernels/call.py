"""The call of a Triton kernel inside an XLA program, and the arrays of packed rows and tables that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.catalogue import BLOCK, Text
from bert_horovod.model.lookups import sorted_ids
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled, operations

TARGET = "__gpu$xla.gpu.triton"  # XLA's custom call that compiles Triton's intermediate representation
TYPE_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def call(
    text: Text,
    dtype: tf.DType,
    operands: Sequence[tf.Tensor],
    results: Sequence[tuple[Sequence[int], tf.DType]],
    grid: tuple[int, int, int],
) -> list[tf.Tensor]:
    """Run a kernel; only inside a compiled function, on a GPU.

    Args:
        text: the kernel.
        dtype: of the computation: bfloat16 or float16.
        operands: the kernel's operands (catalogue.OPERANDS) without its results.
        results: shape and dtype of each result.
        grid: numbers of programs.
    """
    written = text.read(TYPE_NAMES[dtype.name])
    # MLIR's string syntax: a backslash and two hexadecimal digits for a special character.
    quoted = written.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    x, y, z = grid
    config = (
        f'{{name = "{text.kernel}", ir = "{quoted}", num_stages = {text.stages} : i32, num_warps = {text.warps} : i32, '
        f"grid_x = {x} : i32, grid_y = {y} : i32, grid_z = {z} : i32, debug = false}}"
    )
    specs = [tf.TensorSpec(shape, kind) for shape, kind in results]
    return operations().custom_call_v2(TARGET, list(operands), specs, backend_config=config)


def width_served(width: int) -> bool:
    """Whether the kernel serves tables of this width."""
    return width % catalogue.TABLE_COLUMNS[0] == 0


def with_lookups(dense: tf.Tensor, lookups: tf.IndexedSlices, dtype: tf.DType) -> tf.Tensor:
    """A table's gradient, float32 [entries, width]: its dense part and the sparse one of its lookups.

    Args:
        dense: [entries, width]; of `dtype`, or float32 zeros.
        lookups: float32 values [..., width], int32 indices [...].
        dtype: of the computation: bfloat16 or float16.
    """
    return compiled(_with_lookups)(tf.cast(dense, dtype), lookups.values, lookups.indices)


def _with_lookups(dense: tf.Tensor, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    entries, width = dense.shape
    values, ids = tf.reshape(values, [-1, width]), tf.reshape(ids, [-1])
    text = catalogue.table_gradient(width)
    parts = width // dict(text.constants)["COLUMNS"]
    operands = [*sorted_lookups(ids, entries), values, dense, tf.constant([parts], tf.int32)]
    return call(text, dense.dtype, operands, [(dense.shape, tf.float32)], (entries, parts, 1))[0]


def sorted_lookups(ids: tf.Tensor, entries: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The order that sorts ids, equal ids by their place, int32 [n], and where each entry begins in it, [entries + 1].

    Only inside a compiled function; ids are int32 [n].
    """
    count = ids.shape[0]
    by_id, order = sorted_ids(ids)
    entry = tf.range(entries + 1)
    starts = tf.zeros_like(entry)
    for bit in reversed(range(count.bit_length())):  # the number of smaller ids, bit by bit from the highest
        probe = starts + (1 << bit)
        smaller = tf.gather(by_id, tf.minimum(probe, count) - 1) < entry
        starts = tf.where((probe <= count) & smaller, probe, starts)
    return order, starts


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
