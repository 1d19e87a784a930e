"""The gradient of a looked-up table on a GPU, in a fixed order, by a Triton kernel."""

from __future__ import annotations

from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.call import call
from bert_horovod.model.lookups import sorted_ids
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled


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
