"""A trace of an optimizer step, in Chrome's form, with Horovod's own events."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.step_results import StepTimes

# Process numbers in the trace: ours, and the offset that is added to Horovod's, which has one number per tensor.
OURS, HOROVODS = 0, 1000
_WRITTEN_S = 10.0  # seconds in which Horovod must have written its timeline


def record_step(run: Callable[[], StepTimes], directory: Path, world: World, plan: BucketPlan) -> None:
    """Run a step on every rank, and write rank 0's record of it to step.json in the directory, which is made."""
    horovods = directory / "horovod.json"
    if world.rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        horovods.unlink(missing_ok=True)
    world.barrier()
    world.record_timeline(horovods)
    times = run()
    world.record_timeline(None)
    if world.rank == 0:
        trace = {"traceEvents": events(times, plan) + _horovods_events(horovods)}
        write_atomically(directory / "step.json", json.dumps(trace))
        horovods.unlink(missing_ok=True)


def events(times: StepTimes, plan: BucketPlan) -> list[dict[str, Any]]:
    """A step's events; times in microseconds since the epoch."""
    names = [bucket[0] if len(bucket) == 1 else f"{bucket[0]} and {len(bucket) - 1} more" for bucket in plan.buckets]
    names += [f"looked-up rows of {plan.rows}"] if plan.rows else []
    backward_end = times.micro_batches[-1][1]
    spans = [{"ph": "M", "name": "process_name", "pid": OURS, "args": {"name": "bert_horovod, rank 0"}}]
    spans += [_span("compute", f"micro-batch {k}", *span) for k, span in enumerate(times.micro_batches)]
    spans += [
        _span("all-reduces", name, *span)
        for name, span in zip(names, times.all_reduces, strict=bool(times.all_reduces))
    ]
    spans.append(_span("waiting", "for all-reduces", backward_end, times.reduced))
    spans.append(_span("compute", "update", times.reduced, times.updated))
    return spans


def _span(thread: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": OURS, "tid": thread, "name": name, "ts": 1e6 * begin, "dur": 1e6 * (end - begin)}


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
