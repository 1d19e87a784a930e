"""Steps without data: full rows of random tokens, and a training step on them."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert_horovod.batches.packing import most_sequences
from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.exchange.reducer import GradientReducer
from bert_horovod.model.parameters import initial_values, pretraining_shapes
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.recipe.sections import Model, Phase, Recipe
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.training.step import StepInputs, StepResult, TrainStep, xla_mode


class LoneRank(World):
    """Rank 0 of a world of `size` that is alone: it does a rank's work, and each sum is its own share."""

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass
class SyntheticStep:
    """A rank's optimizer step on synthetic rows; `run` it as often as wanted."""

    step: TrainStep
    batches: list[dict[str, np.ndarray]]
    first_rows: list[int]
    inputs: StepInputs

    def run(self) -> StepResult:
        """Do one optimizer step, to its end."""
        return self.step.run(self.batches, self.first_rows, self.inputs)


def build_step(
    recipe: Recipe,
    phase: Phase,
    micro_batches: int,
    world: World | None = None,
    plan: BucketPlan | None = None,
    held_back: bool = False,
    kind: type[TrainStep] = TrainStep,
) -> SyntheticStep:
    """A step of `micro_batches` micro-batches of execution.micro_batch rows, all real, on fresh parameters.

    Devices are the caller's to set (collectives.world.use_devices). `world` is a world of one where it is not given,
    `plan` that of execution.bucket_bytes; `held_back` is GradientReducer's.
    """
    world = world or World()
    model, pairs, rows = recipe.model, recipe.objective.pairs, recipe.execution.micro_batch
    half = recipe.numerics.precision == "float16"
    scale = recipe.numerics.initial_loss_scale if half else 1.0
    state = TrainingState(
        initial_values(pretraining_shapes(model, pairs), model.initializer_range, recipe.data.seed),
        recipe.optimizer.name,
        Progress(loss_scale=scale),
    )
    shapes = pretraining_shapes(model, pairs)
    plan = plan or by_size(shapes, recipe.execution.bucket_bytes)
    reducer = GradientReducer(world, shapes, plan, recipe.numerics.wire, held_back)
    step = kind(recipe, state, reducer, world, micro_batches, xla_mode(recipe))
    masked_slots, sequences = row_slots(recipe, phase)
    batch = synthetic_batch(model, rows, phase.sequence_length, masked_slots, sequences)
    counts = [float(batch[name].sum()) * micro_batches for name in ("masked_weights", "sequence_weights")]
    inputs = StepInputs(
        *(tf.constant(value, tf.float32) for value in (*counts, scale * micro_batches if half else 1.0)),
        tf.constant([recipe.data.seed + 1], tf.uint64),
        *(tf.constant(value, tf.float32) for value in (learning_rate(phase, 1, recipe.optimizer.decay_power), 1)),
    )
    return SyntheticStep(step, [batch] * micro_batches, [rows * k for k in range(micro_batches)], inputs)


def row_slots(recipe: Recipe, phase: Phase) -> tuple[int, int]:
    """Slots of a row, for masked positions and for sequences: with packing, about the most that any
    row may need."""
    sequences = most_sequences(phase.sequence_length) if recipe.data.packing else 1
    masked = 1 + math.ceil(recipe.objective.masked_fraction * phase.sequence_length)  # each sequence's are rounded
    return max(sequences, min(masked, phase.sequence_length)), sequences


def synthetic_batch(model: Model, rows: int, length: int, masked_slots: int, sequences: int) -> dict[str, np.ndarray]:
    """Random rows in the format of batches.rows.Rows.assemble, the same in every call; no place is padding.

    Args:
        model: vocab_size and type_vocab_size bound the ids.
        rows: R.
        length: positions per row, L.
        masked_slots: M, at most L; all are used, spread evenly.
        sequences: S, at most L; each row has so many, of equal length but for one position.

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
