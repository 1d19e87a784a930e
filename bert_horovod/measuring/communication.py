"""Time the optimizer step with its communication off, overlapped with backward, and held back until backward ends.

If the exchange sends different data in different steps, the step time is a mean and includes its work between steps;
such a step is not held back.
"""

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.derived import derive
from bert_horovod.costs.exchanges import stages
from bert_horovod.measuring.configuration import describe
from bert_horovod.measuring.delayed import DelayedStep, DelayedUpdater, delays_of
from bert_horovod.measuring.synthetic import LoneRank, SyntheticStep, phase_batch, synthetic_step
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.processor import busy_share, core_ticks
from bert_horovod.training.hooks.timeline import StepTimeline
from bert_horovod.training.overlap import plan_by_measurement
from bert_horovod.training.step_results import StepTimes

WARM_UP = 1  # untimed step of each kind, because it compiles


def measure(
    recipe: Recipe,
    world: World,
    steps: int,
    delays: dict[str, Any] | None = None,
    timeline: Path | None = None,
    warm_up: int = WARM_UP,
) -> dict[str, Any]:
    """Time the step of the recipe's first phase on synthetic rows, each kind of step in turn; the times are medians.

    Args:
        recipe: its global batch is shared by the ranks.
        world: the ranks; one rank alone times only the step without communication.
        steps: number of timed steps of each kind.
        delays: seconds to sleep instead of computing, see delayed.py; None: compute.
        timeline: a directory for a trace of one overlapped step.
        warm_up: steps of each kind that are not timed.

    Returns:
        The JSON object of `bert-horovod bench comm --json`; all of it but times and cores is equal on all ranks.
    """
    phase = recipe.phase[0]
    micro_batches = derive(recipe, phase, world.size).micro_batches
    batch = phase_batch(recipe, phase)
    slept = {"classes": (partial(DelayedStep, delays), partial(DelayedUpdater, delays))}

    def build(world: World, plan: BucketPlan | None = None, **options: bool) -> SyntheticStep:
        return synthetic_step(recipe, batch, micro_batches, world, plan, **options, **(slept if delays else {}))

    off = build(LoneRank(world.size))
    expectation = plan_by_measurement(recipe, off.step, off.batches[0], off.inputs(), world)
    kinds = {"off": off}  # each has a training state of its own
    alike = recipe.exchange.cycle == 1  # all steps send the same
    if world.size > 1:
        overlaps = recipe.exchange.overlaps
        kinds["overlapped"] = build(world, expectation.plan if overlaps else None)
        if overlaps and alike:
            kinds["held_back"] = build(world, expectation.plan, held_back=True)
    results, taken_s = {name: [] for name in kinds}, dict.fromkeys(kinds, 0.0)
    ticks = {name: [] for name in kinds}
    for i in range(warm_up + steps):
        for name, step in kinds.items():
            world.barrier()
            begin, ticks_before = time.perf_counter(), core_ticks()
            result = step.run(with_times=True)
            if i >= warm_up:
                taken_s[name] += time.perf_counter() - begin
                ticks[name].append((ticks_before, core_ticks()))
                results[name].append(result)
    if timeline is not None and world.size > 1:
        _write_timeline(timeline, kinds["overlapped"], expectation.plan, world)

    def median(kind: str, seconds) -> float:
        return statistics.median(seconds(result.times) for result in results[kind])

    step_s = {name: median(name, _step_s) if alike else taken_s[name] / steps for name in kinds}
    update_s = median("off", lambda times: times.updated - times.reduced)
    report = {
        "configuration": describe(recipe),
        "world_size": world.size,
        "micro_batches": micro_batches,
        "step_s": step_s,
        "rows_per_s": phase.global_batch / step_s["overlapped" if world.size > 1 else "off"],
        "cores_busy": {name: busy_share(spans) for name, spans in ticks.items()},
        "delays": delays or delays_of(expectation.profile, update_s),
    }
    if world.size > 1:
        rows = int(results["overlapped"][-1].scalars.get("rows", 0))
        exchange = kinds["overlapped"].step.exchange
        dense = recipe.exchange.overlaps and [stage.name for stage in stages(recipe, phase)] == ["dense"]
        report |= {
            "exposed_s": step_s["overlapped"] - step_s["off"],
            "exposed_held_back_s": step_s["held_back"] - step_s["off"] if "held_back" in kinds else None,
            "reduce_wait_s": statistics.median(result.times.reduce_wait_s for result in results["overlapped"]),
            "hidden_share": median("overlapped", hidden_share),
            "bytes_reduced": exchange.bytes_reduced(rows),
            "wire_bytes": exchange.wire_bytes(rows),
            "link": {"latency_s": expectation.link.latency_s, "bytes_per_s": expectation.link.bytes_per_s(world.size)},
            # The prediction is for dense gradients, sent bucket by bucket.
            "predicted_s": step_s["off"] + expectation.exposed_s if dense else None,
            "floor_s": expectation.floor_s,
            "reduction": expectation.plan.reduction,
            "bucket_bytes": expectation.bucket_bytes,
            "rows": rows,
        }
    return report


def hidden_share(times: StepTimes) -> float:
    """Seconds with an all-reduce under way before backward's end, over all such seconds; 1 without all-reduces."""
    end = times.micro_batches[-1][1]
    covered, hidden, until = 0.0, 0.0, float("-inf")
    for begin, done in sorted(times.all_reduces):
        begin = max(begin, until)
        if done > begin:
            covered += done - begin
            hidden += max(0.0, min(done, end) - begin)
            until = done
    return hidden / covered if covered else 1.0


def _step_s(times: StepTimes) -> float:
    return times.updated - times.micro_batches[0][0]


def _write_timeline(directory: Path, step: SyntheticStep, plan: BucketPlan, world: World) -> None:
    if world.rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
    world.barrier()
    timeline = StepTimeline(directory, (1, 1), world, print)
    timeline.begin(1)
    timeline.end(1, step.run(with_times=True).times, plan)
