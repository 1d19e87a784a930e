"""Time the optimizer step as a run does it, on rows of a token store, on all ranks.

A step of many micro-batches is timed with two of them: all but the last only add up gradients and take equally long.
"""

import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.prefetch import prefetch
from bert_horovod.batches.text.rows import StoreDataset
from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.corpus.store import Store
from bert_horovod.costs.buckets import by_size
from bert_horovod.costs.derived import derive
from bert_horovod.exchange.base import Exchange
from bert_horovod.measuring.configuration import describe
from bert_horovod.measuring.synthetic import fresh_state
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.inputs import StepBatch, make_batch, step_inputs
from bert_horovod.training.overlap import plan_by_measurement, plan_is_measured
from bert_horovod.training.start import open_source_once
from bert_horovod.training.step import TrainStep, build_step
from bert_horovod.training.step_results import StepTimes
from bert_horovod.training.transfer import StepInputs

MICRO_BATCHES = 2  # of a timed step, at most
LEAST_STEPS = 2  # timed steps, after one that compiles
_LEARNING_RATE = 1e-4  # any: the work is the same
_STEPS = 1 << 30  # more than anybody waits for


@dataclass(frozen=True)
class StepSeconds:
    """A timed step: seconds of a whole step of the recipe, and of parts of it."""

    step_s: float
    input_wait_s: float
    micro_batch_s: float  # forward and backward of one micro-batch; with accumulation, adding up its gradients too
    update_s: float  # from the last sum over ranks to the step's end
    reduce_wait_s: float  # from the last gradient to the last sum over ranks


class RealStep:
    """A rank's optimizer step on rows of a store; all ranks call `run` together. Call `close` at the end.

    Args:
        recipe: its global batch is shared by the ranks.
        phase: number of the recipe's phase, from 0.
        store: the token store that has the rows.
        index_dir: see batches.index.open_index.
        world: the ranks.
    """

    def __init__(self, recipe: Recipe, phase: int, store: Store, index_dir: Path | None, world: World) -> None:
        settings = recipe.phase[phase]
        self._recipe, self._world, self._task = recipe, world, Pretraining(recipe.objective.pairs)
        self.micro_batches = derive(recipe, settings, world.size).micro_batches  # of the recipe's step
        self._made = min(self.micro_batches, MICRO_BATCHES)
        self._dataset = StoreDataset(store, recipe, index_dir)
        self._source = open_source_once(self._dataset, phase, "train", world)
        whole = self._made == self.micro_batches
        self._rows = settings.global_batch if whole else self._made * world.size * recipe.execution.micro_batch
        # In the middle of the phase, where the mask rate is the mean of the phase's; else any rows do.
        falls = settings.masked_fraction_end not in (0, settings.masked_fraction)
        self._first = settings.steps // 2 * settings.global_batch // self._rows if falls else 0
        self._state = fresh_state(recipe)
        self._step = self._build()
        self._step.exchange.begin(1, settings.steps)
        self._batches = prefetch(self._make, self._first, self._first + _STEPS, depth=2)

    def run(self, end: bool = False) -> StepSeconds | None:
        """Do a step. If rank 0 calls with `end`, no rank does it and all return None: then call `run` no more."""
        begin = time.time()
        batch, waited_s = next(self._batches)
        inputs = self._inputs(batch, end)
        if inputs is None:
            return None
        result = self._step.run(batch.micro_batches, batch.first_rows, inputs, with_times=True)
        self._state.progress.count(result.finite, self._recipe.numerics)
        self._step.exchange.after_step(self._state.progress.step, 0.0)
        return whole_step(result.times, begin, time.time(), waited_s, self._made, self.micro_batches)

    @property
    def exchange(self) -> Exchange:
        """How the ranks agree on an update."""
        return self._step.exchange

    def close(self) -> None:
        """End the thread that makes rows."""
        self._batches.close()

    def _make(self, number: int) -> StepBatch:
        return make_batch(number, self._rows, self._source, self._dataset, self._task, self._recipe, self._world)

    def _inputs(self, batch: StepBatch, end: bool) -> StepInputs | None:
        own_counts = [*batch.counts.values(), float(end and self._world.rank == 0)]
        *counts, ended = self._world.all_reduce(tf.constant(own_counts, tf.float64), "counts").numpy().tolist()
        if ended:
            return None
        named = dict(zip(self._task.counts, np.maximum(counts, 1).tolist(), strict=True))
        progress = self._state.progress
        return step_inputs(self._recipe, progress.step, progress.task, named, _LEARNING_RATE)

    def _build(self) -> TrainStep:
        recipe, world = self._recipe, self._world
        plan = by_size(self._task.parameters(recipe.model), recipe.execution.bucket_bytes)
        if plan_is_measured(recipe, world):
            step, batch = build_step(recipe, self._task, self._state, world, plan, 1), self._make(self._first)
            plan = plan_by_measurement(recipe, step, batch.micro_batches[-1], self._inputs(batch, False), world).plan
        return build_step(recipe, self._task, self._state, world, plan, self._made)


def whole_step(
    times: StepTimes, begin: float, end: float, waited_s: float, made: int, micro_batches: int
) -> StepSeconds:
    """Seconds of a step of `micro_batches`, from a timed step of only `made`; each one left out lasts like the first.

    Args:
        times: of the timed step.
        begin, end: of the timed step, in seconds since the epoch.
        waited_s: seconds that the timed step waited for its rows, at its beginning; the whole step waits in proportion.
        made, micro_batches: see above.
    """
    begins = [first for first, _ in times.micro_batches]
    one_s = begins[1] - begins[0] if len(begins) > 1 else times.micro_batches[0][1] - begins[0]
    input_wait_s = waited_s * micro_batches / made
    return StepSeconds(
        step_s=end - begin - waited_s + (micro_batches - made) * one_s + input_wait_s,
        input_wait_s=input_wait_s,
        micro_batch_s=one_s,
        update_s=end - times.reduced,
        reduce_wait_s=times.reduce_wait_s,
    )


def measure(step: RealStep, recipe: Recipe, phase: int, world: World, seconds: float, bound_s: float) -> dict[str, Any]:
    """Time steps for `seconds`, at least LEAST_STEPS of them; all ranks call it together.

    If the exchange sends different data in different steps, whole intervals are timed, and the step time is the mean;
    otherwise it is the median.

    Args:
        step: of this recipe and phase.
        recipe, phase, world: as given to it.
        seconds: no step begins after these, by rank 0's clock.
        bound_s: end after the first timed step if a step of the recipe takes longer than this.

    Returns:
        The JSON object of `bert-horovod bench throughput --json`; times are this rank's, memory_bytes is the largest
        over
        ranks.
    """
    interval, steps = recipe.exchange.cycle, []
    begun = time.perf_counter()
    for _ in range(interval):
        step.run()
    first_step_s, begun = time.perf_counter() - begun, time.perf_counter()
    least = math.ceil(LEAST_STEPS / interval) * interval

    def enough() -> bool:
        if len(steps) % interval or not steps:
            return False
        late = time.perf_counter() - begun >= seconds and len(steps) >= least
        return late or (len(steps) == interval and statistics.mean(timed_step.step_s for timed_step in steps) > bound_s)

    while (timed := step.run(end=enough())) is not None:
        steps.append(timed)
    step_s = (statistics.median if interval == 1 else statistics.mean)(timed_step.step_s for timed_step in steps)
    parts = ("input_wait_s", "micro_batch_s", "update_s", "reduce_wait_s")
    return {
        "configuration": describe(recipe),
        "phase": phase,
        "world_size": world.size,
        "gpu": has_gpu(),
        "micro_batches": step.micro_batches,
        "step_s": step_s,
        "rows_per_s": recipe.phase[phase].global_batch / step_s,
        **{name: statistics.median(getattr(timed_step, name) for timed_step in steps) for name in parts},
        "bytes_reduced": step.exchange.bytes_reduced(),
        "memory_bytes": max(from_all_ranks([peak_memory_bytes()], world, "peak")),
        "first_step_s": first_step_s,
        "steps": [asdict(timed_step) for timed_step in steps],
    }
