"""What an optimizer step returns, and how the host gets it from the device."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf

# A GPU copies a result only after all that was enqueued before the copy was asked for. So a thread asks for it at once,
# while the next step is being enqueued.
_READER = ThreadPoolExecutor(1, "results")


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
    checksums: np.ndarray | None = None  # of a micro-batch's gradient: int64 [TrainStep.checksum_names]; None likewise


class StartedStep:
    """A step whose programs are enqueued; `result` waits for their end."""

    def __init__(
        self,
        sum_names: Sequence[str],
        scalar_names: Sequence[str],
        outputs: tuple[tf.Tensor, ...],
        spans: list[tf.Tensor] | None,
        checksums: tf.Tensor | None = None,
    ) -> None:
        self._sum_names, self._scalar_names, self._spans = sum_names, scalar_names, spans
        self._outputs: Future = _READER.submit(lambda: [part.numpy() for part in (*outputs, *(spans or ()))])
        self._checksums = checksums

    def result(self) -> StepResult:
        """The step's result; raises what its programs raised."""
        numbers, ready_s, done_s, *spans = (part.tolist() for part in self._outputs.result())
        sums = dict(zip(self._sum_names, numbers, strict=False))
        scalars = dict(zip(self._scalar_names, numbers[len(sums) :], strict=True))
        finite, reduced_s, updated_s = (scalars.pop(name) for name in ("finite", "reduced_s", "updated_s"))
        times = None
        if self._spans is not None:
            all_reduces = list(zip(ready_s, done_s, strict=True))
            times = StepTimes([tuple(span) for span in spans], all_reduces, reduced_s, updated_s)
        checksums = None if self._checksums is None else self._checksums.numpy()
        return StepResult(sums, bool(finite), scalars, times, checksums)
