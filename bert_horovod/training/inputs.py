"""What optimizer steps read: a rank's micro-batches as tensors, made ahead of the step in the background."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_horovod.batches.prefetch import prefetch
from bert_horovod.batches.rows import Rows
from bert_horovod.batches.schedule import step_positions
from bert_horovod.collectives.world import World
from bert_horovod.config import Phase, Recipe
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.training.step import as_tensors


def step_inputs(
    store: Store, recipe: Recipe, phase: Phase, rows: Rows, world: World, first: int, last: int
) -> Iterator[tuple[tuple[list[dict[str, tf.Tensor]], list[int], np.ndarray], float]]:
    """The inputs of the phase's steps `first` to `last` - 1, with the seconds that the step waited for each.

    Per step: micro-batches of this rank, the place of each one's first row in the global batch, and float64 counts of
    masked tokens, sequences and real tokens.

    All that the host does for an input is done in the background thread, the making of tensors and the copy to a GPU
    too. (Eagerly made int32 tensors stay in the host's memory: TensorFlow copies those when the step takes them.)

    Raises:
        UserError: the store holds an id that the model has not.
    """
    device = "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"

    def make(step: int) -> tuple[list[dict[str, tf.Tensor]], list[int], np.ndarray]:
        taken = step_positions(step, phase.global_batch, world.rank, world.size, recipe.execution.micro_batch)
        together = rows.assemble(np.concatenate([positions for positions, _ in taken]))
        if (highest := together["input_ids"].max()) >= recipe.model.vocab_size:
            raise UserError(
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
