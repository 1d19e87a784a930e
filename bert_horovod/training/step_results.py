"""What goes to the device for an optimizer step, and how the host gets its results and checksums of its tensors.

All arrays that a program reads from the host are in one tensor, because each copy to a GPU takes the host's time. The
parts begin at multiples of 64 bytes, so that TensorFlow takes them out of the tensor without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.exchange.base import Gradients, Lookups
from bert_horovod.runtime import lazy_tensorflow as tf

# A GPU copies a result only after all that was enqueued before the copy was asked for. So a thread asks for it at once,
# while the next step is being enqueued.
_READER = ThreadPoolExecutor(1, "results")


Named = dict[tuple[str, ...], "tf.Tensor"]  # one entry: the names of a tensor's numbers, and the tensor


def as_named(numbers: dict[str, tf.Tensor], dtype: tf.DType) -> Named:
    """Scalars as one tensor; in a graph, which returns the keys of a dict as they are, names need no other way."""
    return {tuple(numbers): tf.stack([tf.cast(number, dtype) for number in numbers.values()])}


class StepTimes(NamedTuple):
    """Times of events in a step on this rank, in seconds since the epoch."""

    micro_batches: list[tuple[float, float]]  # begin and end of forward and backward
    all_reduces: list[tuple[float, float]]  # for each all-reduce: its input is ready, its sum is ready
    reduced: float  # all sums are ready
    updated: float  # the parameters are updated

    @property
    def reduce_wait_s(self) -> float:
        """Seconds from the last gradient to the last sum."""
        return self.reduced - self.micro_batches[-1][1]


class StepResult(NamedTuple):
    """The result of one optimizer step; equal on all ranks except `times` and `checksums`."""

    sums: dict[str, float]  # the task's loss sums over the global batch
    finite: bool  # False: the update was skipped
    scalars: dict[str, float]  # by name: exchange.base.Update.scalars
    times: StepTimes | None  # None: not asked for
    checksums: np.ndarray | None = None  # of a micro-batch's gradient: int64 [tensors]; None likewise


class StartedStep:
    """A step whose programs are enqueued; `result` waits for their end."""

    def __init__(
        self,
        sum_names: Sequence[str],
        outputs: tuple[Named, tf.Tensor, tf.Tensor],
        spans: list[tf.Tensor] | None,
        checksums: Named | None = None,
    ) -> None:
        self._sum_names, self._spans, self._checksums = sum_names, spans, checksums
        ((self._names, numbers),) = outputs[0].items()
        self._outputs: Future = _READER.submit(
            lambda: [part.numpy() for part in (numbers, *outputs[1:], *(spans or ()))]
        )

    def result(self) -> StepResult:
        """The step's result; raises what its programs raised."""
        numbers, ready_s, done_s, *spans = (part.tolist() for part in self._outputs.result())
        scalars = dict(zip(self._names, numbers, strict=True))
        sums = {name: scalars.pop(name) for name in self._sum_names}
        finite, reduced_s, updated_s = (scalars.pop(name) for name in ("finite", "reduced_s", "updated_s"))
        times = None
        if self._spans is not None:
            all_reduces = list(zip(ready_s, done_s, strict=True))
            times = StepTimes([tuple(span) for span in spans], all_reduces, reduced_s, updated_s)
        checksums = None if self._checksums is None else next(iter(self._checksums.values())).numpy()
        return StepResult(sums, bool(finite), scalars, times, checksums)


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


_WORD_BYTES = 8


def checksum(tensor: tf.Tensor) -> tf.Tensor:
    """Checksum of floats of any dtype and shape: the sum of their bits, as int64 words; one flipped bit changes it."""
    flat = tf.reshape(tensor, [-1])
    in_word = _WORD_BYTES // flat.dtype.size
    missing = -flat.shape[0] % in_word
    if missing:
        flat = tf.pad(flat, [[0, missing]])
    return tf.reduce_sum(tf.bitcast(tf.reshape(flat, [-1, in_word]), tf.int64))


def gradient_checksums(gradients: Gradients, lookups: Lookups) -> dict[str, tf.Tensor]:
    """The checksum of each gradient, int64 scalars by name; looked-up rows have one beside that of their table."""
    sums = {name: checksum(gradient) for name, gradient in gradients.items()}
    return sums | {f"{name} (looked-up rows)": checksum(part.values) for name, part in lookups.items()}
