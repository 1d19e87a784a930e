"""What optimizer steps read: a rank's micro-batches as tensors, made ahead of the step in the background."""

from collections.abc import Generator

import numpy as np
import tensorflow as tf

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.positions import step_positions
from bert_horovod.batches.prefetch import prefetch
from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.world import World
from bert_horovod.corpus.store import Store
from bert_horovod.errors import DamagedData
from bert_horovod.recipe.sections import Phase, Recipe
from bert_horovod.runs.state import Progress
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.training.step import StepInputs, as_tensors

# A stream of the recipe's seed, apart from those of batches/rows.py.
_DROPOUT_STREAM = 101


def step_inputs(
    store: Store, recipe: Recipe, phase: Phase, rows: Rows, world: World, first: int, last: int
) -> Generator[tuple[tuple[list[dict[str, tf.Tensor]], list[int], np.ndarray], float], None, None]:
    """The phase's global batches `first` to `last` - 1, with the seconds that the step waited for each.

    Per global batch: micro-batches of this rank, the place of each one's first row in the global batch, and float64
    counts of masked tokens, sequences and real tokens.

    All that the host does for an input is done in the background thread, the making of tensors and the copy to a GPU
    too. (Eagerly made int32 tensors stay in the host's memory: TensorFlow copies those when the step takes them.)

    Raises:
        DamagedData: the store holds an id that the model has not.
    """
    device = "/GPU:0" if has_gpu() else "/CPU:0"

    def make(batch: int) -> tuple[list[dict[str, tf.Tensor]], list[int], np.ndarray]:
        taken = step_positions(batch, phase.global_batch, world.rank, world.size, recipe.execution.micro_batch)
        together = rows.assemble(np.concatenate([positions for positions, _ in taken]))
        if (highest := together["input_ids"].max()) >= recipe.model.vocab_size:
            raise DamagedData(
                f"the token store holds id {highest}, the model has {recipe.model.vocab_size} entries; "
                f"see which shard is damaged with: bert-horovod verify --data_dir {store.path}"
            )
        counts = np.array(
            [np.count_nonzero(together[name]) for name in ("masked_weights", "sequence_weights", "sequence_ids")],
            np.float64,
        )
        parts = {name: np.split(array, len(taken)) for name, array in together.items()}
        with tf.device(device):
            batches = [as_tensors({name: part[k] for name, part in parts.items()}) for k in range(len(taken))]
        return batches, [first_row for _, first_row in taken], counts

    return prefetch(make, first, last, depth=2)


def shared_inputs(
    recipe: Recipe, progress: Progress, totals: np.ndarray, rate: float, micro_batches: int, world: World
) -> StepInputs:
    """What the micro-batches of the next step share.

    Args:
        recipe: the run's.
        progress: before the step.
        totals: float64, over all ranks: masked tokens, sequences, ...
        rate: the learning rate.
        micro_batches: K, per rank.
        world: the ranks.
    """
    # In float16 backward runs at the magnitude of a micro-batch mean times the loss scale.
    half = recipe.numerics.precision == "float16"
    scale = progress.loss_scale * world.size * micro_batches if half else 1.0
    key = keyed_hash(recipe.data.seed, _DROPOUT_STREAM, index=np.array([progress.step], np.uint64))
    return StepInputs(
        *(tf.constant(value, tf.float32) for value in (totals[0], totals[1], scale)),
        tf.constant(key, tf.uint64),
        *(tf.constant(value, tf.float32) for value in (rate, progress.updates + 1)),
    )
