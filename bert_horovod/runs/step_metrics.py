"""The schema of a line of metrics.jsonl, for log, TensorBoard, report and docs. Imports no TensorFlow."""

from dataclasses import dataclass, field
from typing import Any


def _metric(unit: str, part_of: str = "") -> Any:
    return field(metadata={"unit": unit} | ({"part_of": part_of} if part_of else {}))


@dataclass(frozen=True)
class StepMetrics:
    """A line of metrics.jsonl about a step; the task's own metrics come after the loss.

    The metrics up to skipped_steps are of the step alone: global, and equal in a resumed run. The others are over the
    interval since the line before; throughput is per wall time, including the wait for input.
    """

    step: int = _metric("optimizer steps of the run")
    phase: int = _metric("from 0")
    epoch: int = _metric("from 0")
    loss: float = _metric("nats")
    learning_rate: float = _metric("")
    gradient_norm: float | None = _metric("before clipping; null: this step's exchange does not know it")
    exchange_norm: float | None = _metric(
        "of what the exchange knows instead: the sums that it sent, or the ranks' mean; null: gradient_norm is known"
    )
    loss_scale: float = _metric("of the next step; 1 without one")
    skipped_steps: int = _metric("updates skipped so far")
    rows_per_s: float = _metric("rows a second, all ranks")
    tokens_per_s: float = _metric("real tokens a second, all ranks, no padding")
    flops_per_s: float = _metric("operations of matrix products a second, all ranks")
    flops_share: float | None = _metric("share of the devices' peak; null: peak unknown")
    step_s: float = _metric("seconds a step")
    input_wait_s: float = _metric("seconds a step, this rank", "step_s")
    reduce_wait_s: float | None = _metric("seconds a step, this rank; null: not measured in these steps", "step_s")
    saving_s: float = _metric("seconds a step, this rank, with evaluations and other work between steps", "step_s")
    compute_s: float | None = _metric(
        "seconds of forward and backward in one step, median over ranks; null: not measured in these steps", "step_s"
    )
    slowest_compute_s: float | None = _metric("the largest of the ranks' compute_s; null likewise")
    slowest_rank: int | None = _metric("the rank with slowest_compute_s; null likewise")
    bytes_reduced: float = _metric("payload of the step's collectives, bytes")
    wire_bytes: float = _metric("sent by a rank in the step, bytes")
    memory_bytes: int = _metric("peak of this rank so far, bytes")
    time: float = _metric("seconds since the epoch")
