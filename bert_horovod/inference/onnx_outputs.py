"""Compute a task's outputs for all rows by an exported ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bert_horovod.batches.examples.base import PackedRows
from bert_horovod.batches.examples.labelled import DocumentRows
from bert_horovod.inference.options import Progress
from bert_horovod.inference.outputs import block_rows
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.sentence_transformers import VECTOR
from bert_horovod.recipe.sections import Model


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
        if isinstance(rows, DocumentRows):
            return {"logits": np.stack([self._document(rows, number, progress) for number in range(rows.count)])}
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

    def _document(self, rows: DocumentRows, number: int, progress: Progress | None) -> np.ndarray:
        """The logits of a document, [1, labels]; all its windows are one input."""
        batch = rows.assemble(np.array([number]))
        arrays = batch | {"attention_mask": batch["sequence_ids"]}
        logits = self._call("", {name: arrays[name][None].astype(np.int64) for name in self._names})["logits"]
        if progress:
            progress(number + 1, rows.count)
        return logits

    def vectors(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The sentence vectors of rows of one text each, from ids and mask, int32 [rows, length]."""
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._call("", {name: arrays[name].astype(np.int64) for name in self._names})[VECTOR]
