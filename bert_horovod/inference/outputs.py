"""Compute a task's outputs for all rows of a source, by the model or by an exported ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert_horovod.batches.examples.base import PackedRows
from bert_horovod.batches.source import Source
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.inference.options import Progress
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.sentence_transformers import VECTOR
from bert_horovod.model.forward import ComputePolicy, Forward, as_tensors
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import PredictingTask

_BLOCK_POSITIONS = 4096  # of the rows that are computed at once


def block_rows(sequence_length: int) -> int:
    """Rows of a block: depends on the sequence length alone, so that a row's outputs are the same bits everywhere."""
    return max(1, _BLOCK_POSITIONS // sequence_length)


class NotFiniteError(UserError):
    """A model's outputs are not finite."""


def require_finite(outputs: dict[str, np.ndarray]) -> None:
    """Raise NotFiniteError if an output, by name, has values that are not finite."""
    for name, output in outputs.items():
        if not np.isfinite(output).all():
            raise NotFiniteError(
                f"the model's {name} are not finite for {np.count_nonzero(~np.isfinite(output))} of {output.size:,} "
                "values: its parameters are too large, as after a training that has diverged; take another checkpoint"
            )


class RowOutputs:
    """Computes a task's outputs row by row of a source, each row once, whatever the number of ranks.

    Rows are computed in blocks of `rows` (see block_rows), the same for every number of ranks, so that a row's outputs
    are the same bits. Every rank computes a contiguous share of the blocks.
    """

    def __init__(self, task: PredictingTask, model: Model, policy: ComputePolicy, rows: int, world: World) -> None:
        self._rows = rows
        self._world = world

        @tf.function(autograph=False)
        def outputs_of(parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return task.outputs(Forward(model, cast_weights(parameters, policy.dtype), policy), batch)

        self._outputs = outputs_of

    def __call__(
        self, variables: dict[str, tf.Variable], source: Source, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs by the task's names for them, float32 [source.count, ...] each; equal on all ranks.

        `progress` is called with the number of rows that this rank has done, and the number that it has to do. Raises
        NotFiniteError.
        """
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        size, blocks = self._rows, -(-source.count // self._rows)
        first, last = (blocks * rank // self._world.size for rank in (self._world.rank, self._world.rank + 1))
        parts_of: dict[str, list[np.ndarray]] = {}
        # A rank without a block computes a block of padding, because it must know the outputs' shapes.
        for block in range(first, max(last, first + 1)):
            rows = np.arange(block * size, (block + 1) * size)
            real = (rows < source.count) & (block < last)
            batch = as_tensors(source.assemble(np.where(real, rows, -1)))
            for name, output in self._outputs(parameters, batch).items():
                parts_of.setdefault(name, []).append(output.numpy()[real])
            if progress:
                mine = min(last * size, source.count) - first * size
                progress(min((block + 1 - first) * size, mine), mine)
        joined = {name: np.concatenate(parts) for name, parts in parts_of.items()}
        outputs = {
            name: self._world.all_gather(tf.constant(output), f"outputs/{name}").numpy()
            for name, output in joined.items()
        }
        require_finite(outputs)
        return outputs


class OnnxOutputs:
    """As RowOutputs; each sequence of a row is a row of a call, because the file knows no packed rows.

    Args:
        directory: of the export.
        model: the sizes.
    """

    def __init__(self, directory: Path, model: Model) -> None:
        from bert_horovod.interchange.serving_graph import input_names  # imports TensorFlow at once

        self._call, self._names = load_export(directory), input_names(model)

    def __call__(self, _: object, rows: PackedRows, progress: Progress | None = None) -> dict[str, np.ndarray]:
        """The outputs by the task's names for them, [rows.count, S or L, ...] each; 0 where there is no item."""
        outputs: dict[str, np.ndarray] = {}
        slots = next(iter(rows.slots.values()))
        size = block_rows(rows.length)
        for first in range(0, rows.count, size):
            numbers = np.arange(first, min(first + size, rows.count))
            batch = rows.assemble(numbers)
            sequences = batch["sequence_ids"]
            owner, slot = np.nonzero((sequences[:, None, :] == np.arange(1, slots + 1)[:, None]).any(-1))
            places = [np.flatnonzero(sequences[row] == number + 1) for row, number in zip(owner, slot, strict=True)]
            length = max(map(len, places))
            inputs = {name: np.zeros((len(places), length), np.int64) for name in self._names}
            for i, (row, mine) in enumerate(zip(owner, places, strict=True)):
                inputs["attention_mask"][i, : len(mine)] = 1
                for name in set(self._names) - {"attention_mask"}:
                    inputs[name][i, : len(mine)] = batch[name][row, mine]
            for name, array in self._call("", inputs).items():
                by_place = array.shape[1:2] == (length,) and (array.ndim > 2 or name != "logits")
                width = rows.length if by_place else slots
                shape = (rows.count, width, *array.shape[2 if by_place else 1 :])
                whole = outputs.setdefault(name, np.zeros(shape, np.float32))
                for i, (row, number, mine) in enumerate(zip(owner, slot, places, strict=True)):
                    if by_place:
                        whole[first + row, mine] = array[i, : len(mine)]
                    else:
                        whole[first + row, number] = array[i]
            if progress:
                progress(int(numbers[-1]) + 1, rows.count)
        return outputs

    def vectors(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The sentence vectors of rows of one text each, from ids and mask, int32 [rows, length]."""
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._call("", {name: arrays[name].astype(np.int64) for name in self._names})[VECTOR]
