"""Collects the metrics of a run and writes them as lines of metrics.jsonl."""

import time
from dataclasses import asdict
from typing import Any

from bert_horovod.costs.gpus import TERA
from bert_horovod.runs.step_metrics import StepMetrics
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes
from bert_horovod.training.console import duration
from bert_horovod.training.hooks.base import Hook, StepEvent

_BESIDE = ("saving", "evaluating", "waiting for room", "probing")  # activities between steps, see Hook.doing


class Interval:
    """The sums that this rank collects between two log steps."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = self._rows = 0
        self._input_wait_s = 0.0
        self._reduce_waits_s: list[float] = []
        self.saving_s = 0.0  # seconds of saving, evaluating and other activities between steps
        self.tokens = 0.0  # real tokens of this rank, without padding

    def add(self, rows: int, input_wait_s: float, reduce_wait_s: float | None, tokens: float) -> None:
        """Count a step; `rows` are those of all ranks, the other arguments are this rank's."""
        self._steps += 1
        self._rows += rows
        self._input_wait_s += input_wait_s
        self.tokens += tokens
        if reduce_wait_s is not None:
            self._reduce_waits_s.append(reduce_wait_s)

    def rates(self, tokens: float, flops_per_row: float, peak_flops_per_s: float | None) -> dict[str, float | None]:
        """Throughput of all ranks, and means per step in seconds.

        Args:
            tokens: real tokens of all ranks.
            flops_per_row: operations of matrix products per row.
            peak_flops_per_s: peak of all ranks together; None: unknown, then flops_share is None too.
        """
        seconds = time.monotonic() - self._started
        flops_per_s = self._rows * flops_per_row / seconds
        waits = self._reduce_waits_s
        return {
            "rows_per_s": self._rows / seconds,
            "tokens_per_s": tokens / seconds,
            "flops_per_s": flops_per_s,
            "flops_share": flops_per_s / peak_flops_per_s if peak_flops_per_s else None,
            "step_s": seconds / self._steps,
            "input_wait_s": self._input_wait_s / self._steps,
            "saving_s": self.saving_s / self._steps,
            "reduce_wait_s": sum(waits) / len(waits) if waits else None,
        }


class MetricsHook(Hook):
    """Writes a line of metrics each execution.log_steps steps, after the run's first step, and at a phase's end."""

    _beside_since: float | None = None  # time at which an activity between steps began

    def doing(self, what: str, more_s: float) -> None:
        now = time.monotonic()
        if self._beside_since is not None:
            self._interval.saving_s += now - self._beside_since
        self._beside_since = now if what.startswith(_BESIDE) and self.run.phase else None

    def begin(self, step: int) -> None:
        if self._is_due(step):  # before the step, because the exchange may be in another stage after it
            exchange = self.run.exchange
            self._stages[step] = exchange.norm_metric, exchange.bytes_reduced(), exchange.wire_bytes()

    def phase(self) -> None:
        self._stages: dict[int, tuple[str, float, float]] = {}  # by step: the norm's metric, and bytes without rows
        self._interval = Interval()
        self._started: float | None = time.monotonic()

    def step(self, event: StepEvent) -> None:
        run, result = self.run, event.result
        if self._started is not None:
            run.say(f"the first step took {duration(time.monotonic() - self._started)}, all before it included")
            self._started = None
        wait_s = result.times.reduce_wait_s if result.times else None
        self._interval.add(run.phase.settings.global_batch, event.waited_s, wait_s, event.batch.tokens)
        run.console.advance(event.step)
        if not self._is_due(event.step):
            return
        run.doing("writing metrics")
        interval, self._interval = self._interval, Interval()
        with tf.device("/CPU:0"):  # a GPU would do it only after the next step
            tokens = run.world.all_reduce(tf.constant(interval.tokens, tf.float64), "tokens").numpy()
        if run.journal is None:
            return
        progress, position, exchange = run.state.progress, run.position(), run.exchange
        norm_metric, reduced, sent = self._stages.pop(event.step)
        scalars = dict(result.scalars)
        norm, rows = scalars.pop("gradient_norm"), int(scalars.pop("rows", 0))
        metrics = StepMetrics(
            step=progress.step,
            phase=position["phase"],
            epoch=position["epoch"],
            loss=event.loss,
            learning_rate=event.learning_rate,
            **{"gradient_norm": None, "exchange_norm": None} | {norm_metric: norm},
            loss_scale=progress.loss_scale,
            skipped_steps=progress.skipped_steps,
            **self._rates(interval, float(tokens), run.phase.flops_per_row(event.batch.micro_batches[0])),
            bytes_reduced=reduced + exchange.bytes_reduced(rows) - exchange.bytes_reduced(),
            wire_bytes=sent + exchange.wire_bytes(rows) - exchange.wire_bytes(),
            memory_bytes=peak_memory_bytes(),
            time=time.time(),
        )
        before = run.journal.dropped.pop(event.step, None)
        if before is not None and before != event.loss:
            run.journal.dropped.clear()
            run.journal.incident(
                event.step,
                f"this resume is exact to rounding only: the loss of step {event.step} is {event.loss!r}, and was "
                f"{before!r} before the interruption (another device, other versions, or execution settings)",
            )
        of_task = run.task.metrics(result.sums, event.counts)
        run.journal.record(_with_task_metrics(asdict(metrics), of_task) | scalars)
        figures = {"loss": f"{event.loss:.4f}"}
        figures |= {name: f"{metric:.3f}" for name, metric in of_task.items() if name.endswith("accuracy")}
        first = [f"{name} {metric}" for name, metric in list(figures.items())[:2]]
        run.console.show(event.step, "  ".join([*first, f"{metrics.rows_per_s:.1f} rows/s"]))

    def _is_due(self, step: int) -> bool:
        return step % self.run.recipe.execution.log_steps == 0 or step in (1, self.run.phase.end)

    def _rates(self, interval: Interval, tokens: float, flops_per_row: float) -> dict[str, float | None]:
        run = self.run
        rates = interval.rates(tokens, flops_per_row, run.peak_flops_per_s)
        if (rates["flops_share"] or 0) > 1 and not has_gpu():  # a CPU's peak was measured, maybe beside other work
            run.peak_flops_per_s, rates["flops_share"] = rates["flops_per_s"], 1.0
            run.say(
                f"the peak of matrix products is at least {run.peak_flops_per_s / TERA:.3g} TFLOP/s over all ranks, "
                "which they reach now: other work slowed the measurement at the start"
            )
        return rates

    def rolled_back(self) -> None:
        step = self.run.state.progress.step
        self.run.console.back_to(step)
        if self.run.journal is not None:
            self.run.journal.cut_back(step)


def _with_task_metrics(line: dict[str, Any], of_task: dict[str, float]) -> dict[str, Any]:
    """The line with the task's metrics inserted after the loss."""
    ordered = {}
    for name, metric in line.items():
        ordered[name] = metric
        if name == "loss":
            ordered |= of_task
    return ordered
