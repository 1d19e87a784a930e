"""A training step that can be timed: on full rows of random tokens, or on those of a store."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.source import open_source_once
from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.collectives.world import World
from bert_horovod.corpus.stores import Stores
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.costs.derived import derive
from bert_horovod.measuring.configuration import row_slots
from bert_horovod.model.forward import as_arrays
from bert_horovod.model.parameters import initial_values, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.optimizers.loss_scale import first_loss_scale
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.agreement import agree_on_products
from bert_horovod.training.building import build_step
from bert_horovod.training.inputs import Batches, step_inputs
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StartedStep, StepInputs, StepResult

_LEARNING_RATE = 1e-4
_STEPS = 1 << 30  # more than anybody waits for


class LoneRank(World):
    """Rank 0 of a world of `size` ranks, without the others: it does one rank's work; all_reduce returns its input."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tf.concat([tensor] * self.size, 0)


class StepRows(NamedTuple):
    """A rank's rows of one step."""

    micro_batches: list[dict[str, np.ndarray]]
    first_rows: list[int]  # of each micro-batch, its place in the global batch
    counts: dict[str, float]  # the task's counts, over all ranks
    waited_s: float = 0.0  # for these rows


@dataclass
class TimedStep:
    """A rank's optimizer step; `run` it as often as wanted. Call `close` at the end, if its rows are a store's.

    The learning rate is constant, because the work is the same at any rate.
    """

    recipe: Recipe
    state: TrainingState
    step: TrainStep
    rows: StepRows  # of the next step
    source: Generator[StepRows] | None = None  # of each further step; None: all have the same rows
    with_times: bool = False  # of the parts of each step that `seconds` times, which makes it wait for each
    results: list[StepResult] = field(default_factory=list)  # of the steps that `seconds` timed
    waits_s: list[float] = field(default_factory=list)  # for their rows

    def inputs(self) -> StepInputs:
        """The inputs of the next step."""
        progress = self.state.progress
        return step_inputs(self.recipe, progress.step, progress.task, self.rows.counts, _LEARNING_RATE)

    def run(self, with_times: bool = False) -> StepResult:
        """Do one optimizer step, to its end, and count it."""
        return self._end(self._start(with_times))

    def seconds(self, steps: int) -> list[float]:
        """Seconds of so many steps in a row, each from the end of the one before it.

        On a GPU each is enqueued before the result of the one before is read, as in a run.
        """
        ahead = has_gpu() and not self.with_times and not self.step.exchange.works_after_steps
        self.results, self.waits_s = [], []
        ends = [time.perf_counter()]  # before the first one is enqueued, which may compile it
        started: StartedStep | None = self._start() if ahead and steps else None
        for number in range(steps):
            if not ahead:
                started = self._start(self.with_times)
            following = self._start() if ahead and number + 1 < steps else None
            self.results.append(self._end(started))
            started = following
            ends.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(ends)]

    def close(self) -> None:
        """End the thread that makes rows."""
        if self.source is not None:
            self.source.close()

    def _start(self, with_times: bool = False) -> StartedStep:
        if self.source is not None:
            self.rows = next(self.source)
        self.waits_s.append(self.rows.waited_s)
        return self.step.start(self.rows.micro_batches, self.rows.first_rows, self.inputs(), with_times)

    def _end(self, started: StartedStep) -> StepResult:
        result = started.result()
        self.state.progress.count(result.finite, self.recipe.numerics)
        self.step.exchange.after_step(self.state.progress.step, 0.0)
        return result


def fresh_state(recipe: Recipe) -> TrainingState:
    """Parameters and slots at the beginning of a run of the recipe; its model must be that of its first phase."""
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    parameters = initial_values(shapes, recipe.model.initializer_range, recipe.data.seed)
    progress = Progress(loss_scale=first_loss_scale(recipe.numerics))
    trained = trained_shapes(shapes, recipe.model, recipe.phase[0].trained_layers)
    return TrainingState(parameters, slot_shapes(recipe, trained), progress, trained=trained)


def synthetic_step(
    recipe: Recipe, batch: dict[str, np.ndarray], micro_batches: int = 1, world: World | None = None
) -> TimedStep:
    """A step of the recipe's first phase (Recipe.of_phase for others); all its `micro_batches` have the same rows.

    The caller sets the devices (runtime.devices.use_devices). By default `world` is a world of one.
    """
    return timed_step(recipe, repeated_rows(recipe, batch, micro_batches), world or World(), None, None)


def timed_step(
    recipe: Recipe, rows: StepRows, world: World, plan: BucketPlan | None, state: TrainingState | None, **options: Any
) -> TimedStep:
    """A step on these rows; `options` are those of training.building.build_step.

    `plan`: None: by execution.bucket_bytes; `state`: None: a fresh one.
    """
    state, task = state or fresh_state(recipe), Pretraining(recipe.objective.pairs)
    plan = plan or by_size(state.shapes, recipe.execution.bucket_bytes)
    agree_on_products(recipe, state.progress, world)
    step = build_step(recipe, task, state, world, plan, len(rows.micro_batches), **options)
    step.exchange.begin(1, recipe.phase[0].steps)
    return TimedStep(recipe, state, step, rows)


def repeated_rows(recipe: Recipe, batch: dict[str, np.ndarray], micro_batches: int) -> StepRows:
    """A step whose micro-batches all have these rows."""
    counts = Pretraining(recipe.objective.pairs).batch_counts(batch)
    first_rows = [recipe.execution.micro_batch * k for k in range(micro_batches)]
    numbers = {name: float(max(1, count) * micro_batches) for name, count in counts.items()}
    return StepRows([as_arrays(batch)] * micro_batches, first_rows, numbers)


def store_rows(recipe: Recipe, stores: Stores, index_dir: Path | None, world: World, most: int) -> Generator[StepRows]:
    """The stores' rows for each step of the recipe's first phase, made ahead in a thread; all ranks call together."""
    task, phase = Pretraining(recipe.objective.pairs), recipe.phase[0]
    dataset = dataset_of(stores, recipe, index_dir)
    source = open_source_once(dataset, 0, "train", world)
    whole = derive(recipe, phase, world.size).micro_batches <= most
    rows = phase.global_batch if whole else most * world.size * recipe.execution.micro_batch
    # In the middle of the phase, where the mask rate is the mean of the phase's; else any rows do.
    falls = phase.masked_fraction_end not in (0, phase.masked_fraction)
    first = phase.steps // 2 * phase.global_batch // rows if falls else 0

    batches = Batches(rows, phase, source, dataset, task, recipe).ahead(first, first + _STEPS, world)
    try:
        for batch, waited_s in batches:
            own = tf.constant(list(batch.counts.values()), tf.float64)
            counts = np.maximum(world.all_reduce(own, "counts").numpy(), 1).tolist()
            named = dict(zip(task.counts, counts, strict=True))
            yield StepRows(batch.micro_batches, batch.first_rows, named, waited_s)
    finally:
        batches.close()


def phase_batch(recipe: Recipe, phase: Phase) -> dict[str, np.ndarray]:
    """A micro-batch of the phase, of packed rows if the recipe packs."""
    slots = row_slots(recipe, phase, most=False)
    return synthetic_batch(recipe.model, recipe.execution.micro_batch, phase.sequence_length, *slots)


def synthetic_batch(model: Model, rows: int, length: int, masked_slots: int, sequences: int) -> dict[str, np.ndarray]:
    """Random rows in the format of batches.text.rows.Rows.assemble, the same in every call; no position is padding.

    Returns:
        int32 [R, L], [R, M] or [R, S] arrays; the weights are float32, all 1.
    """
    random = np.random.default_rng(0)
    starts = np.arange(sequences) * length // sequences
    place = np.arange(length)
    sequence = np.searchsorted(starts, place, side="right") - 1
    offset = place - starts[sequence]
    lengths = np.diff(np.append(starts, length))
    second = (2 * offset >= lengths[sequence]) & (model.type_vocab_size > 1)

    def words(*shape: int) -> np.ndarray:
        """Ids as frequent as words are: the k-th in proportion to 1 / k (Zipf)."""
        return np.int32((model.vocab_size + 1) ** random.random(shape) - 1)

    def repeated(row: np.ndarray) -> np.ndarray:
        return np.tile(row.astype(np.int32), (rows, 1))

    return {
        "input_ids": words(rows, length),
        "token_type_ids": repeated(second),
        "position_ids": repeated(offset),
        "sequence_ids": repeated(sequence + 1),
        "masked_positions": repeated(np.arange(masked_slots) * length // masked_slots),
        "masked_ids": words(rows, masked_slots),
        "masked_weights": np.ones((rows, masked_slots), np.float32),
        "sequence_starts": repeated(starts),
        "next_sentence_labels": random.integers(0, 2, (rows, sequences), np.int32),
        "sequence_weights": np.ones((rows, sequences), np.float32),
    }
