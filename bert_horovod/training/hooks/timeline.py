"""A trace of some optimizer steps, in Chrome's form, with Horovod's own events (execution.timeline)."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run
from bert_horovod.training.step_results import StepTimes

# Process numbers in the trace: ours, and the offset that is added to Horovod's, which has one number per tensor.
OURS, HOROVODS = 0, 1000
_WRITTEN_S = 10.0  # seconds in which Horovod must have written its timeline


class TimelineHook(Hook):
    """Records execution.timeline's steps on every rank."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        steps = run.recipe.execution.timeline
        self._steps = range(steps[0], steps[1] + 1) if steps else range(0)
        self._timeline = StepTimeline(run.job.output_dir / "timeline", steps, run.world, run.say)

    def wants_times(self, step: int) -> bool:
        return step in self._steps

    def begin(self, step: int) -> None:
        self._timeline.begin(step)

    def step(self, event: StepEvent) -> None:
        if event.result.times is not None:
            self._timeline.end(event.step, event.result.times, self.run.exchange.plan)

    def finish(self) -> None:
        self._timeline.close(self.run.state.progress.step)

    def close(self) -> None:
        if hasattr(self.run, "state"):
            self._timeline.close(self.run.state.progress.step)


class StepTimeline:
    """Records the steps of a range on every rank and writes rank 0's record; does nothing for an empty range.

    `directory` is made when recording begins. `steps`: (first, last), counted from 1 as in metrics.jsonl, or ().
    """

    def __init__(self, directory: Path, steps: tuple[int, ...], world: World, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._first, self._last = steps or (1, 0)
        self._world = world
        self._say = say
        self._events: list[dict[str, Any]] = []
        self._begun = 0  # the step at which recording began; 0: no recording

    def begin(self, number: int) -> None:
        """Begin to record if optimizer step `number`, which follows, is the first one inside the range."""
        if self._first <= number <= self._last and not self._begun:
            self._begun = number
            if self._world.rank == 0:
                self._directory.mkdir(exist_ok=True)
                self._horovods.unlink(missing_ok=True)
            self._world.record_timeline(self._horovods)

    def end(self, number: int, times: StepTimes, plan: BucketPlan) -> None:
        """Record optimizer step `number`, which is done; the range's last step writes the trace."""
        if self._begun:
            self._events += events(number, times, plan)
            if number == self._last:
                self.close(number)

    def close(self, number: int) -> None:
        """Write the trace of the steps up to `number`, if any were recorded."""
        begun, self._begun = self._begun, 0
        if not begun:
            return
        self._world.record_timeline(None)
        if self._world.rank == 0:
            trace = {"traceEvents": self._events + (_horovods_events(self._horovods) if self._world.size > 1 else [])}
            path = self._directory / f"steps-{begun}-{number}.json"
            write_atomically(path, json.dumps(trace))
            self._horovods.unlink(missing_ok=True)
            self._say(f"timeline of steps {begun} to {number}: {path} (open it in chrome://tracing or ui.perfetto.dev)")

    @property
    def _horovods(self) -> Path:
        return self._directory / "horovod.json"


def events(number: int, times: StepTimes, plan: BucketPlan) -> list[dict[str, Any]]:
    """A step's events; times in microseconds since the epoch."""
    names = [bucket[0] if len(bucket) == 1 else f"{bucket[0]} and {len(bucket) - 1} more" for bucket in plan.buckets]
    names += [f"looked-up rows of {plan.rows}"] if plan.rows else []
    backward_end = times.micro_batches[-1][1]
    spans = [_metadata("process_name", OURS, {"name": "bert_horovod, rank 0"})]
    spans += [_span("compute", f"step {number}, micro-batch {k}", *span) for k, span in enumerate(times.micro_batches)]
    spans += [
        _span("all-reduces", name, *span)
        for name, span in zip(names, times.all_reduces, strict=bool(times.all_reduces))
    ]
    spans.append(_span("waiting", "for all-reduces", backward_end, times.reduced))
    spans.append(_span("compute", "update", times.reduced, times.updated))
    return spans


def _span(thread: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": OURS, "tid": thread, "name": name, "ts": 1e6 * begin, "dur": 1e6 * (end - begin)}


def _metadata(kind: str, process: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "args": arguments}


def _horovods_events(path: Path) -> list[dict[str, Any]]:
    """Horovod's events, with times and process numbers that fit our events; waits until Horovod has written them."""
    end = time.monotonic() + _WRITTEN_S
    while time.monotonic() < end:
        try:
            events = json.loads(path.read_text(encoding="utf-8"))
            break
        except (OSError, ValueError):
            time.sleep(0.05)
    else:
        return []
    started = next(
        event["args"]["start_time_since_epoch_in_micros"]
        for event in events
        if "start_time_since_epoch_in_micros" in event.get("args", {})
    )
    shifted = []
    for event in events:
        if "start_time_since_epoch_in_micros" not in event.get("args", {}):
            moved = {"ts": event["ts"] + started} if "ts" in event else {}
            shifted.append(event | {"pid": HOROVODS + event["pid"]} | moved)
    return shifted
