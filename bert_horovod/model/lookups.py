"""Gradients of looked-up tables, in an order of additions that is the same in every run.

A CPU adds rows one after another. A GPU adds the rows of one entry in any order, by atomic additions: here it does not,
so that a resumed run equals one that was not stopped bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from bert_horovod.model.integers import reshaped
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.runtime.xla import compiled, operations


def looked_up(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The rows of a table of few entries, float32 [entries, width], at int32 [...]: [..., width]."""
    return _by_product(table, ids) if has_gpu() else tf.gather(table, ids)


@tf.custom_gradient
def looked_up_rows(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The rows of a large table; its gradient is sparse, as tf.gather's, with values [n, width] and indices [n]."""

    def gradient(dy: tf.Tensor) -> tuple[tf.IndexedSlices, None]:
        entries, width = table.shape
        return tf.IndexedSlices(tf.reshape(dy, [-1, width]), reshaped(ids, [-1]), tf.constant([entries, width])), None

    return tf.gather(table, ids), gradient


def add_rows(table: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Add float32 rows [..., width] to the entries `ids`, int32 [...], of a table [entries, width]."""
    ids, rows = (compiled(_summed) if has_gpu() else _listed)(ids, rows)
    return tf.tensor_scatter_nd_add(table, ids, rows)


def sorted_ids(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids in ascending order, and the place that each had, equal ids by their place; only inside a compiled function.

    int32 [n], as is `ids`.
    """
    count = ids.shape[0]
    bits = count.bit_length()
    # One number holds an id and its place: XLA sorts numbers alone faster than pairs, and no two of them are equal.
    keys = tf.bitwise.left_shift(tf.cast(ids, tf.int64), tf.constant(bits, tf.int64)) + tf.range(count, dtype=tf.int64)
    keys = operations().sort(keys)
    return tf.cast(keys // (1 << bits), tf.int32), tf.cast(keys % (1 << bits), tf.int32)


@tf.custom_gradient
def _by_product(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, None]:
        places = tf.one_hot(ids, table.shape[0], dtype=dy.dtype)  # (..., entries)
        flat = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in (places, dy)]
        return tf.matmul(*flat, transpose_a=True), None

    return tf.gather(table, ids), gradient


def _listed(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids as [n, 1] and rows as [n, width]."""
    return tf.reshape(ids, [-1, 1]), tf.reshape(rows, [-1, rows.shape[-1]])


def _summed(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """As `_listed`, with ids in ascending order; an id's last row is the sum of its rows, its others are zero.

    After the step with distance d, a row is the sum of the last 2 d rows of its id up to it.
    """
    ids, places = sorted_ids(tf.reshape(ids, [-1]))
    rows = tf.gather(_listed(ids, rows)[1], places)
    distance = 1
    while distance < ids.shape[0]:
        same = (ids[distance:] == ids[:-distance])[:, None]
        rows += tf.pad(tf.where(same, rows[:-distance], 0.0), [[distance, 0], [0, 0]])
        distance *= 2
    last = tf.concat([ids[1:] != ids[:-1], [True]], 0)
    return ids[:, None], tf.where(last[:, None], rows, 0.0)
