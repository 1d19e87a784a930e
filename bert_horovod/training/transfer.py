"""All arrays that a program reads from the host, in one tensor: each copy to a GPU takes the host's time.

The parts begin at multiples of 64 bytes, so that TensorFlow takes them out of the tensor without a copy.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf

_PLACES = 16  # of four bytes each, between the beginnings of parts


class StepInputs(NamedTuple):
    """The inputs that all micro-batches of a step share: arrays, and tensors of the same shapes inside a graph."""

    counts: dict[str, Any]  # the task's counts over all ranks: float32 scalars
    learning_rate: Any  # float32 scalar
    dropout_key: Any  # uint64 [1]
    task: dict[str, Any]  # Progress.task, float32: added to each micro-batch for the task's loss


class Field(NamedTuple):
    """One array of the tensor."""

    name: str
    dtype: str  # as np.dtype.name: of four or eight bytes
    shape: tuple[int, ...]
    begin: int  # in float32 numbers


class Layout:
    """Where each array lies; equal layouts are one object, which lets a graph take it as an argument."""

    def __init__(self, fields: tuple[Field, ...], size: int) -> None:
        self.fields, self.size = fields, size


def together(arrays: dict[str, Any]) -> tuple[tf.Tensor, Layout]:
    """Arrays and scalars of NumPy as one float32 tensor [n] in the host's memory, bit for bit, and its layout."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    layout = _layout(tuple((name, array.dtype.name, array.shape) for name, array in arrays.items()))
    places = np.zeros(layout.size, np.int32)  # integers, because copies of floats may change the bits of a NaN
    for field in layout.fields:
        part = np.ascontiguousarray(arrays[field.name]).reshape(-1).view(np.int32)
        places[field.begin : field.begin + part.size] = part
    with tf.device("/CPU:0"):
        return tf.constant(places.view(np.float32)), layout


def apart(tensor: tf.Tensor, layout: Layout) -> dict[str, tf.Tensor]:
    """The arrays that `together` joined, by name; on a GPU all of them come there in one copy."""
    arrays = {}
    for name, dtype, shape, begin in layout.fields:
        dtype = tf.as_dtype(dtype)
        width = dtype.size // 4
        part = tensor[begin : begin + width * int(np.prod(shape))]
        # Shaped as floats, because TensorFlow reshapes integers of a GPU on the host.
        part = tf.reshape(part, [*shape, width] if width > 1 else shape)
        arrays[name] = tf.bitcast(part, dtype)
    return arrays


@functools.cache
def _layout(arrays: tuple[tuple[str, str, tuple[int, ...]], ...]) -> Layout:
    fields, begin = [], 0
    for name, dtype, shape in arrays:
        fields.append(Field(name, dtype, shape, begin))
        places = np.dtype(dtype).itemsize // 4 * int(np.prod(shape))
        begin += -(-places // _PLACES) * _PLACES
    return Layout(tuple(fields), begin)


def flat(batch: dict[str, np.ndarray], first_row: int, inputs: StepInputs) -> dict[str, np.ndarray]:
    """The arrays that a micro-batch's graph reads, by one name each."""
    groups = {"batch": batch, "counts": inputs.counts, "task": inputs.task}
    named = {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    return named | {
        "first_row": np.uint64(first_row),
        "learning_rate": inputs.learning_rate,
        "dropout_key": inputs.dropout_key,
    }


def unflat(
    tensor: tf.Tensor, layout: Layout
) -> tuple[dict[str, tf.Tensor], tf.Tensor, StepInputs, dict[str, tf.Tensor]]:
    """In a graph: the micro-batch, its first row, the inputs, and what else was sent with them."""
    groups: dict[str, dict[str, tf.Tensor]] = {"batch": {}, "counts": {}, "task": {}, "": {}}
    for name, part in apart(tensor, layout).items():
        group, _, own_name = name.rpartition("/")
        groups[group][own_name] = part
    others = groups[""]
    inputs = StepInputs(groups["counts"], others["learning_rate"], others["dropout_key"], groups["task"])
    return groups["batch"], others["first_row"], inputs, others
