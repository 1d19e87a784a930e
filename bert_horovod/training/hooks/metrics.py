"""Writes the metrics of a run as lines of metrics.jsonl, and names a rank that is slower than the others."""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bert_horovod.costs.gpus import TERA
from bert_horovod.runs.metrics_lines import StepMetrics
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.wording import duration

_TIMED_LINES = 10
_BESIDE = ("saving", "evaluating", "waiting for room", "probing", "judging")  # between steps, see Hook.doing


class Interval:
    """The sums that this rank collects between two log steps."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = self._rows = 0
        self._input_waits_s = 0.0
        self._reduce_waits_s: list[float] = []
        self.saving_s = 0.0  # seconds of saving, evaluating and other activities between steps
        self.tokens = 0.0  # real tokens of this rank, without padding

    def add(self, rows: int, input_wait_s: float, reduce_wait_s: float | None, tokens: float) -> None:
        """Count a step; `rows` are those of all ranks, the other arguments are this rank's."""
        self._steps += 1
        self._rows += rows
        self._input_waits_s += input_wait_s
        self.tokens += tokens
        if reduce_wait_s is not None:
            self._reduce_waits_s.append(reduce_wait_s)

    @property
    def input_wait_s(self) -> float:
        """This rank's wait for its rows, in seconds a step."""
        return self._input_waits_s / self._steps

    def rates(self, tokens: float, flops_per_row: float, peak_flops_per_s: float | None) -> dict[str, float | None]:
        """Throughput of all ranks, and means per step in seconds; `tokens` and the peak are of all ranks together.

        Operations are those of matrix products. If the peak is not known (None), flops_share is None too.
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
            "input_wait_s": self.input_wait_s,
            "saving_s": self.saving_s / self._steps,
            "reduce_wait_s": sum(waits) / len(waits) if waits else None,
        }


class MetricsHook(Hook):
    """Writes a line of metrics each execution.log_steps steps, after the run's first step, and at a phase's end."""

    _computing_s = math.nan  # this rank's seconds of forward and backward in the interval's timed step
    _beside_since: float | None = None  # time at which an activity between steps began

    def doing(self, what: str, more_s: float) -> None:
        now = time.monotonic()
        if self._beside_since is not None:
            self._interval.saving_s += now - self._beside_since
        self._beside_since = now if what.startswith(_BESIDE) and self.run.phase else None

    def begin(self, step: int) -> None:
        if self.wants_times(step):
            self._timing.timed.add(step)
        if self._is_due(step):  # before the step, because the exchange may be in another stage after it
            exchange = self.run.exchange
            self._stages[step] = exchange.norm_metric, exchange.bytes_reduced(), exchange.wire_bytes()

    def wants_times(self, step: int) -> bool:
        return self.run.world.size > 1 and step % self._timing.period == self._timing.period // 2

    def phase(self) -> None:
        self._slow_ranks = SlowRanks(self.run.hosts)
        self._timing = Timing(_TIMED_LINES * self.run.recipe.execution.log_steps)
        self._stages: dict[int, tuple[str, float, float]] = {}  # by step: the norm's metric, and bytes without rows
        self._interval = Interval()
        self._started: float | None = time.monotonic()

    def step(self, event: StepEvent) -> None:
        run, result = self.run, event.result
        self._timing.end(event.step, time.monotonic())
        if self._started is not None:
            run.say(f"the first step took {duration(time.monotonic() - self._started)}, all before it included")
            self._started = None
        wait_s = result.times.reduce_wait_s if result.times else None
        if result.times and event.step in self._timing.timed:
            self._computing_s = sum(end - begin for begin, end in result.times.micro_batches)
        self._interval.add(run.phase.settings.global_batch, event.waited_s, wait_s, event.batch.tokens)
        run.console.advance(event.step)
        if not self._is_due(event.step):
            return
        run.doing("writing metrics")
        interval, self._interval = self._interval, Interval()
        own = [interval.tokens, self._computing_s, interval.input_wait_s, self._timing.added_steps]
        with tf.device("/CPU:0"):  # a GPU would do it only after the next step
            everyone = run.world.all_gather(tf.constant([own], tf.float64), "tokens").numpy()
        tokens, computing_s, reading_s, added_steps = everyone.T
        self._timing.choose(float(added_steps.max()))
        self._computing_s = math.nan
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
            **self._rates(interval, float(tokens.sum()), run.phase.flops_per_row(event.batch.micro_batches[0])),
            **_spread(computing_s),
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
        notice = "" if metrics.compute_s is None else self._slow_ranks.add(computing_s, reading_s, metrics.step_s)
        if notice:
            run.journal.incident(event.step, f"step {event.step}: {notice}")
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
        self._timing.timed.clear()
        self.run.console.back_to(step)
        if self.run.journal is not None:
            self.run.journal.cut_back(step)


def _spread(computing_s: np.ndarray) -> dict[str, Any]:
    """The metrics of each rank's computing; float64 [ranks], NaN: not timed."""
    if np.isnan(computing_s).any():
        return {"compute_s": None, "slowest_compute_s": None, "slowest_rank": None}
    slowest = int(computing_s.argmax())
    return {
        "compute_s": float(np.median(computing_s)),
        "slowest_compute_s": float(computing_s[slowest]),
        "slowest_rank": slowest,
    }


def _with_task_metrics(line: dict[str, Any], of_task: dict[str, float]) -> dict[str, Any]:
    """The line with the task's metrics inserted after the loss."""
    ordered = {}
    for name, metric in line.items():
        ordered[name] = metric
        if name == "loss":
            ordered |= of_task
    return ordered


MOST_ADDED = 0.003  # of a run's time, by timed steps


class Timing:
    """Chooses how often a step is timed, which costs time: once in `least` steps, or in 2, 4, 8, ... times as many."""

    def __init__(self, least: int) -> None:
        self.period = self._least = least
        self.timed: set[int] = set()
        self._ended = -1, 0.0  # the last step, and the time of its end
        self._with_times_s = math.nan  # of the timed step that has just ended
        self._compiles = True
        self._plain_s: deque[float] = deque(maxlen=64)
        self._added_s: deque[float] = deque(maxlen=5)

    def end(self, step: int, now_s: float) -> None:
        """Take in the time at which a step has ended."""
        before, self._ended = self._ended, (step, now_s)
        if before[0] != step - 1:  # the first one, or the run has gone back
            return
        seconds = now_s - before[1]
        if step in self.timed:
            self._with_times_s = seconds
        elif step - 1 in self.timed:
            self.timed.clear()
            if self._plain_s and not self._compiles:
                self._added_s.append(self._with_times_s + seconds - 2 * float(np.median(self._plain_s)))
            self._compiles = False  # the first timed step did
        else:
            self._plain_s.append(seconds)

    @property
    def added_steps(self) -> float:
        """What a timed step adds, in steps that are not timed; 0: not known yet, or nothing."""
        return max(0.0, float(np.median(self._added_s) / np.median(self._plain_s))) if self._added_s else 0.0

    def choose(self, added_steps: float) -> None:
        """Time so seldom that steps which add so much add MOST_ADDED of the time at most."""
        self.period = self._least
        while added_steps > MOST_ADDED * self.period:
            self.period *= 2


SLOW = 1.15  # times the median over ranks
_WINDOWS = 10  # the last ones that decide; of five, the noise of a shared machine has filled four
_MOST = 8  # of them, in which a rank must be slow to be named
_FEW = 2  # of them, in which a named rank may still be slow when it is told that this has ended


class SlowRanks:
    """Decides from window to window whether a rank is to be named; equal on all ranks. `hosts`: by rank."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._slow: deque[int | None] = deque(maxlen=_WINDOWS)  # the slow rank of each window
        self._named: int | None = None

    def add(self, computing_s: np.ndarray, reading_s: np.ndarray, step_s: float) -> str:
        """Count a window; returns a line for people, or "" if there is nothing new to say.

        `computing_s`, `reading_s`: each rank's seconds of forward and backward, and of waiting for rows, float64
        [ranks].
        """
        own_s = computing_s + reading_s
        slowest, median = int(own_s.argmax()), float(np.median(own_s))
        self._slow.append(slowest if own_s[slowest] >= SLOW * median else None)
        counts = Counter(rank for rank in self._slow if rank is not None)
        if self._named is not None and counts[self._named] <= _FEW:
            ended, self._named = self._named, None
            return f"{self._rank(ended)} is no longer slower than the others"
        if self._named is None and counts[slowest] >= _MOST:
            self._named = slowest
            excess = {"computing": computing_s, "reading rows": reading_s}
            most = max(excess, key=lambda kind: excess[kind][slowest] - np.median(excess[kind]))
            share = min(1.0, (own_s[slowest] - median) / step_s)
            return (
                f"{self._rank(slowest)} is slow, mostly by {most}: {own_s[slowest]:.3f} s of its own in a step, the "
                f"ranks' median is {median:.3f} s. All wait for it: that costs {share:.0%} of the time"
            )
        return ""

    def _rank(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"
