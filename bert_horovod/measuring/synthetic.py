"""Steps without data: full rows of random tokens, and a training step on them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bert_horovod.batches.packing import most_sequences
from bert_horovod.batches.text.mask_rates import mask_rate
from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.model.batch_tensors import as_arrays
from bert_horovod.model.parameters import initial_values, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.recipe.sections import Model, Phase, Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.inputs import step_inputs
from bert_horovod.training.step import TrainStep, build_step
from bert_horovod.training.step_results import StartedStep, StepResult
from bert_horovod.training.transfer import StepInputs

_LEARNING_RATE = 1e-4


class LoneRank(World):
    """Rank 0 of a world of `size` ranks, without the others: it does one rank's work; all_reduce returns its input."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tf.concat([tensor] * self.size, 0)


@dataclass
class SyntheticStep:
    """A rank's optimizer step on synthetic rows; `run` it as often as wanted.

    The learning rate is constant, because the work is the same at any rate.
    """

    recipe: Recipe
    state: TrainingState
    step: TrainStep
    batches: list[dict[str, np.ndarray]]
    counts: dict[str, float]  # the task's counts, over all ranks

    def inputs(self) -> StepInputs:
        """The inputs of the next step."""
        progress = self.state.progress
        return step_inputs(self.recipe, progress.step, progress.task, self.counts, _LEARNING_RATE)

    def take(self, batch: dict[str, np.ndarray]) -> None:
        """Work on these rows from the next step on, in each micro-batch."""
        self.batches = [as_arrays(batch)] * len(self.batches)
        self.counts = _counts(self.recipe, batch, len(self.batches))

    def run(self, with_times: bool = False) -> StepResult:
        """Do one optimizer step, to its end, and count it."""
        return self._end(self._start(with_times))

    def seconds(self, steps: int) -> list[float]:
        """Seconds of so many steps in a row, each from the end of the one before it.

        On a GPU each is enqueued before the result of the one before is read, as in a run.
        """
        ahead = has_gpu() and not self.step.exchange.works_after_steps
        started: StartedStep | None = self._start() if ahead and steps else None
        ends = [time.perf_counter()]
        for step in range(steps):
            if not ahead:
                self.run()
            else:
                following = self._start() if step + 1 < steps else None
                self._end(started)
                started = following
            ends.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(ends)]

    def _start(self, with_times: bool = False) -> StartedStep:
        rows = self.recipe.execution.micro_batch
        first_rows = [rows * k for k in range(len(self.batches))]
        return self.step.start(self.batches, first_rows, self.inputs(), with_times)

    def _end(self, started: StartedStep) -> StepResult:
        result = started.result()
        self.state.progress.count(result.finite, self.recipe.numerics)
        self.step.exchange.after_step(self.state.progress.step, 0.0)
        return result


def fresh_state(recipe: Recipe) -> TrainingState:
    """Parameters and slots at the beginning of a run of the recipe; its model must be that of its first phase."""
    half = recipe.numerics.precision == "float16"
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    parameters = initial_values(shapes, recipe.model.initializer_range, recipe.data.seed)
    progress = Progress(loss_scale=recipe.numerics.initial_loss_scale if half else 1.0)
    trained = trained_shapes(shapes, recipe.model, recipe.phase[0].trained_layers)
    return TrainingState(parameters, slot_shapes(recipe, trained), progress, trained=trained)


def synthetic_step(
    recipe: Recipe,
    batch: dict[str, np.ndarray],
    micro_batches: int = 1,
    world: World | None = None,
    plan: BucketPlan | None = None,
    state: TrainingState | None = None,
    **options: Any,
) -> SyntheticStep:
    """A step of the recipe's first phase (Recipe.of_phase for others); all its `micro_batches` have the same rows.

    The caller sets the devices (runtime.devices.use_devices). By default `world` is a world of one, `plan` follows
    execution.bucket_bytes, and `state` is a fresh one; `options` are those of training.step.build_step.
    """
    state, task = state or fresh_state(recipe), Pretraining(recipe.objective.pairs)
    shapes = {name: tuple(variable.shape) for name, variable in state.trained.items()}
    plan = plan or by_size(shapes, recipe.execution.bucket_bytes)
    step = build_step(recipe, task, state, world or World(), plan, micro_batches, **options)
    step.exchange.begin(1, recipe.phase[0].steps)
    counts = _counts(recipe, batch, micro_batches)
    return SyntheticStep(recipe, state, step, [as_arrays(batch)] * micro_batches, counts)


def _counts(recipe: Recipe, batch: dict[str, np.ndarray], micro_batches: int) -> dict[str, float]:
    """The task's counts of so many micro-batches of these rows."""
    counts = Pretraining(recipe.objective.pairs).batch_counts(batch)
    return {name: float(max(1, count) * micro_batches) for name, count in counts.items()}


def phase_batch(recipe: Recipe, phase: Phase) -> dict[str, np.ndarray]:
    """A micro-batch of the phase, of packed rows if the recipe packs."""
    slots = row_slots(recipe, phase)
    return synthetic_batch(recipe.model, recipe.execution.micro_batch, phase.sequence_length, *slots)


def row_slots(recipe: Recipe, phase: Phase) -> tuple[int, int]:
    """Slots of a row, for masked positions and for sequences: with packing, about the most that any row may need."""
    sequences = most_sequences(phase.sequence_length) if recipe.data.packing else 1
    masked = 1 + math.ceil(max(mask_rate(recipe, phase).stairs) * phase.sequence_length)  # + 1: each sequence rounds
    return max(sequences, min(masked, phase.sequence_length)), sequences


def synthetic_batch(model: Model, rows: int, length: int, masked_slots: int, sequences: int) -> dict[str, np.ndarray]:
    """Random rows in the format of batches.text.rows.Rows.assemble, the same in every call; no position is padding.

    Args:
        model: vocab_size and type_vocab_size bound the ids.
        rows: R.
        length: positions per row, L.
        masked_slots: M, at most L; all are used, spread evenly.
        sequences: S, at most L: sequences in each row; their lengths differ by one position at most.

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
