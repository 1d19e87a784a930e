"""Time a recipe's optimizer step: with its communication on, off or held back; on synthetic rows or those of a store.

A step of more than two micro-batches is timed with two of them, because all but the last only add up gradients and take
equally long; the seconds of the others are added. Run as a program, it times the step of one micro-batch on request, as
the scripts in lab/peers do:

    python -m bert_horovod.measuring.bench '{"recipe": {...}}'

It reads numbers of steps, one a line, and answers each with a line: the steps' seconds, as a JSON list. With
"products": true it times the step's matrix products alone instead: a "step" is all products, one after another.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.corpus.stores import Stores
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.costs.derived import derive
from bert_horovod.costs.exchanges import stages
from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring.configuration import TRACED_STEPS, describe_recipe, step_flops, step_seconds
from bert_horovod.measuring.synthetic import (
    LoneRank,
    TimedStep,
    fresh_state,
    phase_batch,
    repeated_rows,
    store_rows,
    synthetic_step,
    timed_step,
)
from bert_horovod.measuring.timeline import record_step
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes, use_devices
from bert_horovod.runtime.host import busy_share, core_ticks, keep_freed_memory
from bert_horovod.training.building import Expectation, plan_by_measurement, plan_is_measured
from bert_horovod.training.step_results import StepResult, StepTimes

COMMUNICATION = ("off", "on", "held_back")  # none; overlapped with backward; all of it after backward
MICRO_BATCHES = 2  # of a timed step, at most
WARM_UP = 3  # steps that are not timed, the first of which compiles
_LARGEST_SEARCH = 16  # warm-up steps, at most, until float16's loss scale settles


@dataclass
class _Timed:
    """The timed steps of one kind of communication."""

    step: TimedStep
    seconds: list[float] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    ticks: list[tuple] = field(default_factory=list)  # of the cores, before and after

    def run(self, steps: int) -> None:
        before = core_ticks()
        self.seconds += self.step.seconds(steps)
        self.ticks.append((before, core_ticks()))
        self.results += self.step.results
        self.waits_s += self.step.waits_s

    def median(self, read: Callable[[StepTimes], float]) -> float:
        return statistics.median(read(result.times) for result in self.results)


class Bench:
    """A rank's optimizer steps of a recipe's only phase; all ranks make it and call it together. `close` it at the end.

    `communication`: of COMMUNICATION, each with a training state of its own; one rank alone has only "off". "held_back"
    is left out where steps send different data, or nothing during backward. `stores` have the rows; None: synthetic
    full ones. A LoneRank as `world` does one rank's work alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        communication: Sequence[str] = ("on",),
        stores: Stores | None = None,
        index_dir: Path | None = None,
    ) -> None:
        self.recipe, self.world, self.phase = recipe, world, recipe.phase[0]
        self.micro_batches = derive(recipe, self.phase, world.size).micro_batches  # of the recipe's step
        self._made = min(self.micro_batches, MICRO_BATCHES)
        self._stores, self._index_dir = stores, index_dir
        self.expectation: Expectation | None = None
        self._timed: dict[str, _Timed] = {}
        alone = world.size == 1 or isinstance(world, LoneRank)
        for kind in ("off",) if alone else COMMUNICATION:
            held_back = kind == "held_back"
            if alone or (kind in communication and (not held_back or self.holds_back)):
                off = LoneRank(world.size) if world.size > 1 else world
                step = self._timed_step(off) if kind == "off" else self._on(held_back)
                step.with_times = not alone or self.micro_batches > self._made
                self._timed[kind] = _Timed(step)

    @property
    def alike(self) -> bool:
        """Whether all steps send the same."""
        return self.recipe.exchange.cycle == 1

    @property
    def holds_back(self) -> bool:
        """Whether a step can be timed whose sums all wait until backward has ended."""
        return self.recipe.exchange.overlaps and self.alike

    @property
    def kind(self) -> str:
        """The kind whose times are the step's: "on", if it is there."""
        return "on" if "on" in self._timed else next(iter(self._timed))

    @property
    def step(self) -> TimedStep:
        """The step of that kind."""
        return self._timed[self.kind].step

    def run(self, steps: int, warm_up: int = WARM_UP) -> dict[str, Any]:
        """Time `steps` of each kind in turn, in whole intervals of the exchange, after `warm_up` steps of each.

        Returns:
            The JSON object of `bert-horovod bench step --json`, without the parts of a step (`parts`); all of it but
            times and cores is equal on all ranks.
        """
        first_s = {kind: warmed_up(timed.step, warm_up) for kind, timed in self._timed.items()}[self.kind]
        steps = math.ceil(steps / self.recipe.exchange.cycle) * self.recipe.exchange.cycle
        in_a_row = steps if len(self._timed) == 1 else 1
        for _ in range(0, steps, in_a_row):
            for timed in self._timed.values():
                self.world.barrier()
                timed.run(in_a_row)
        step_s = {kind: self._step_s(timed) for kind, timed in self._timed.items()}
        rows_per_s = self.phase.global_batch / step_s[self.kind]
        flops = self.micro_batches * step_flops(self.recipe)  # of a rank
        report = {
            "configuration": describe_recipe(self.recipe),
            "world_size": self.world.size,
            "gpu": has_gpu(),
            "micro_batches": self.micro_batches,
            "step_s": step_s[self.kind],
            "rows_per_s": rows_per_s,
            "tokens_per_s": rows_per_s * self.phase.sequence_length,
            "flops_per_s": flops / step_s[self.kind],
            "memory_bytes": max(from_all_ranks([peak_memory_bytes()], self.world, "peak")),
            "first_step_s": first_s,
            "input_wait_s": self.micro_batches / self._made * statistics.mean(self._timed[self.kind].waits_s),
            "communication": {
                kind: {"step_s": step_s[kind], "cores_busy": busy_share(timed.ticks)}
                for kind, timed in self._timed.items()
            },
        }
        return report | (self._exchanged(step_s) if "on" in self._timed else {})

    def trace(self, directory: Path) -> Path:
        """Write a trace below the directory: of two steps for TensorBoard, or with several ranks a Chrome trace of one.

        Raises UserError if the directory cannot be written.
        """
        if "on" not in self._timed:
            return trace(self.step.run, directory)
        plan = self.step.step.exchange.plan
        record_step(lambda: self.step.run(with_times=True).times, directory, self.world, plan)
        return directory

    def close(self) -> None:
        """End the threads that make rows."""
        for timed in self._timed.values():
            timed.step.close()

    def _step_s(self, timed: _Timed) -> float:
        """Seconds of a whole step: the median, or the mean if steps send different data."""
        step_s = (statistics.median if self.alike else statistics.mean)(timed.seconds)
        if left_out := self.micro_batches - self._made:
            begins_s = timed.median(lambda times: times.micro_batches[1][0] - times.micro_batches[0][0])
            step_s += left_out * (begins_s + statistics.mean(timed.waits_s) / self._made)
        return step_s

    def _exchanged(self, step_s: dict[str, float]) -> dict[str, Any]:
        """What is known of the communication."""
        on, recipe = self._timed["on"], self.recipe
        exchange, rows = on.step.step.exchange, int(on.results[-1].scalars.get("rows", 0))
        report = {
            "reduce_wait_s": on.median(lambda times: times.reduce_wait_s),
            "hidden_share": on.median(hidden_share),
            "bytes_reduced": exchange.bytes_reduced(rows),
            "wire_bytes": exchange.wire_bytes(rows),
            "rows": rows,
        }
        if "off" not in step_s:
            return report
        exposed_s = {kind: seconds - step_s["off"] for kind, seconds in step_s.items()}
        expected, link = self.expectation, self.expectation.link
        dense = recipe.exchange.overlaps and [stage.name for stage in stages(recipe, self.phase)] == ["dense"]
        return report | {
            "exposed_s": exposed_s["on"],
            "exposed_held_back_s": exposed_s.get("held_back"),
            "link": {"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s(self.world.size)},
            # The prediction is for dense gradients, sent bucket by bucket.
            "predicted_s": step_s["off"] + expected.exposed_s if dense else None,
            "floor_s": expected.floor_s,
            "reduction": expected.plan.reduction,
            "bucket_bytes": expected.bucket_bytes,
        }

    def _on(self, held_back: bool) -> TimedStep:
        recipe, world, state = self.recipe, self.world, fresh_state(self.recipe)
        if self.expectation is None and ("off" in self._timed or plan_is_measured(recipe, world)):
            step = self._timed["off"].step if "off" in self._timed else self._timed_step(world, state=state)
            batch = step.rows.micro_batches[-1]
            self.expectation = plan_by_measurement(recipe, step.step, batch, step.inputs(), world)
        plan = self.expectation.plan if self.expectation and recipe.exchange.overlaps else None
        return self._timed_step(world, plan, state, **({"held_back": True} if held_back else {}))

    def _timed_step(
        self, world: World, plan: BucketPlan | None = None, state: TrainingState | None = None, **options: bool
    ) -> TimedStep:
        source = self._stores and store_rows(self.recipe, self._stores, self._index_dir, world, self._made)
        rows = next(source) if source else repeated_rows(self.recipe, phase_batch(self.recipe, self.phase), self._made)
        step = timed_step(self.recipe, rows, world, plan, state, **options)
        step.source = source
        return step


def parts(step: TimedStep, passes: int, measured: dict[str, Any]) -> dict[str, Any]:
    """Times of forward and backward passes of a micro-batch, up to its gradients, and of its matrix products alone.

    `passes` are timed; `measured` is what Bench.run returned of the step, which is one rank's.
    """
    function = tf.function(step.step.forward_backward, autograph=False)

    def seconds() -> float:
        inputs, batch = step.inputs(), step.rows.micro_batches[0]
        started = time.perf_counter()
        function(batch, tf.constant(0, tf.uint64), inputs)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - started

    for _ in range(WARM_UP):
        seconds()
    forward_backward_s = statistics.median(seconds() for _ in range(passes))
    products_s = step_seconds(step.recipe)
    return {
        "forward_backward_s": forward_backward_s,
        "products_s": products_s,
        "share": measured["micro_batches"] * products_s / measured["step_s"],
        "forward_backward_share": products_s / forward_backward_s,
    }


def warmed_up(step: TimedStep, steps: int = WARM_UP) -> float:
    """Compile, and run until times and float16's loss scale have settled; returns the first step's seconds."""
    first_s = step.seconds(1)[0]
    for number in range(1, max(steps, _LARGEST_SEARCH)):
        if number >= steps and step.state.progress.skipped_in_a_row == 0:
            break
        step.run()
    return first_s


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


def trace(run: Callable[[], object], directory: Path) -> Path:
    """Write a trace of TRACED_STEPS calls below the directory, for TensorBoard; returns the file *.xplane.pb.

    Raises ReportedError if the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        traces_before = set(directory.rglob("*.xplane.pb"))
        tf.profiler.experimental.start(str(directory))
        for _ in range(TRACED_STEPS):
            run()
        tf.profiler.experimental.stop()
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"--trace {directory}: cannot write a trace there ({error}); name another directory") from error
    written = set(directory.rglob("*.xplane.pb")) - traces_before
    if not written:
        raise RunError(f"--trace {directory}: the profiler wrote no trace there; see that the disk has room")
    return max(written)


def main() -> None:
    """Answer requests for timed steps until standard input ends."""
    keep_freed_memory()  # as a rank does
    request = json.loads(sys.argv[1])
    recipe = recipe_from_table(request["recipe"])
    use_devices(0, 1, recipe.execution.threads)
    if request.get("products"):
        seconds = partial(_products_seconds, recipe)
    else:
        seconds = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0])).seconds
    for line in sys.stdin:
        print(json.dumps(seconds(int(line))), flush=True)


def _products_seconds(recipe: Recipe, times: int) -> list[float]:
    return [step_seconds(recipe) for _ in range(times)]


if __name__ == "__main__":
    main()
