"""int32 arrays that stay on the device, and gradients of looked-up tables that are the same in every run.

Where there is a GPU, TensorFlow reshapes, joins and adds int32 on the host. A copy to the host and back would make the
host wait for the step before. A CPU adds rows of a gradient one after another. A GPU adds the rows of one entry in any
order, by atomic additions: here it does not, so that a resumed run equals one that was not stopped bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.runtime.xla import compiled, operations


def reshaped(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """tf.reshape of int32, or of any other 4-byte dtype."""
    return tf.bitcast(tf.reshape(tf.bitcast(x, tf.float32), shape), x.dtype)


def joined(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """tf.concat of int32."""
    return tf.bitcast(tf.concat([tf.bitcast(tensor, tf.float32) for tensor in tensors], axis), tensors[0].dtype)


def places_in_rows(positions: tf.Tensor, length: int) -> tf.Tensor:
    """The places in a list of rows [rows * length] of positions in each row, int32 [rows, places]: [rows * places]."""
    rows = positions.shape[0]
    assert rows * length <= 1 << 24, "float32 counts no further"
    places = tf.cast(positions, tf.float32) + tf.range(0.0, float(rows * length), float(length))[:, None]
    return tf.cast(tf.reshape(places, [-1]), tf.int32)


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
