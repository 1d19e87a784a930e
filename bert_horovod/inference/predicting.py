"""What the predictors of all kinds of checkpoints share: finetuning/kinds/kinds.py says which one reads which."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.base import PackedRows
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.sources import ITEMS_BYTES
from bert_horovod.corpus.reading.table_files import Table, kind_of, only_column, require_columns
from bert_horovod.corpus.table_writing import table_parts
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.inference.input_table import InputTable
from bert_horovod.inference.onnx_outputs import OnnxOutputs
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.outputs import RowOutputs, block_rows
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.suitability import require_vocabulary
from bert_horovod.model.forward import ComputePolicy
from bert_horovod.runs.checkpoint import recorded_length
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import write_output
from bert_horovod.tasks.base import PredictingTask

_PACKED = 512  # positions of a row that several texts share, at least


class Predictor:
    """Answers for files and lines with a fine-tuned checkpoint; each kind of labelled data has a subclass.

    Raises ReportedError if the checkpoint is damaged, has no vocabulary or no head, or an option does not fit it.
    """

    reads: ClassVar[tuple[str, ...]] = ("keep", "encoding", "quoted_tsv")  # flags of `predict` that not all kinds read
    usual_length: ClassVar[int | None] = None  # of rows, if that of the training is unknown; None: the model's
    least_length: ClassVar[int] = 8
    fills_directories: ClassVar[bool] = False  # whether --output may be a directory

    def __init__(self, checkpoint: OpenCheckpoint, options: Options) -> None:
        self.checkpoint, self.options, self.config = checkpoint, options, checkpoint.reader.configuration
        self.task = self.make_task()
        pretrained = read_fine_tuned(checkpoint, self.task)
        self.model = pretrained.model
        self.vocabulary = require_vocabulary(checkpoint, pretrained.vocabulary)
        self.tokenizer_settings = pretrained.tokenizer_settings
        most = self.model.max_position_embeddings
        usual = recorded_length(checkpoint.directory) or self.usual_length or checkpoint.reader.max_length or most
        usual = min(most, usual)
        if usual < self.least_length <= most and options.sequence_length is None:
            raise UserError(
                f"--checkpoint {checkpoint}: its files say that texts are cut to {usual} tokens; expected "
                f"{self.least_length} to {most}: give another length as --sequence_length of predict"
            )
        self.length = usual if options.sequence_length is None else options.sequence_length
        if not self.least_length <= self.length <= most:
            expected = f"expected {self.least_length} to {most}, the model's positions"
            raise UserError(f"--sequence_length {self.length}: {expected}")
        self.special = special_ids(self.vocabulary, self.tokenizer_settings)
        self._parameters = {name: tf.constant(array) for name, array in pretrained.parameters.items()}
        self._outputs: dict[int, RowOutputs] = {}  # by the length of rows
        self.computes: OnnxOutputs | None = None  # in place of the model
        self.prepare()

    def make_task(self) -> Any:
        """The task of `self.checkpoint` with `self.config`; raises ReportedError for another one."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what else it needs, and check it; the checkpoint is read."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of text: those asked for, else those of the training; (): the only one of the table."""
        return self.options.text_columns or getattr(self.task, "text_columns", ())

    @property
    def heading(self) -> Sequence[str]:
        """The names of an answer's fields, behind that of the index."""
        return ["prediction"]

    @property
    def block_bytes(self) -> int:
        """Bytes of a table that are answered at once, about."""
        return ITEMS_BYTES

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        """The fields of each text's answer, or of each pair's, as many as `heading` names.

        `texts`: for each column those of all rows. With `packing` several share a row; else there is one, in a row as
        short as it fits. `progress` is told of rows that are done. `as_json`: whether a field may be a list.
        """
        raise NotImplementedError

    def said(self, answer: list[Any]) -> str:
        """An answer as a line."""
        return "\t".join(map(str, answer))

    def predict_file(self, source: Path, output: Path, progress: Progress) -> str:
        """Write index, answer and the columns to keep for each row of a table; returns a line about them to print.

        The suffixes of `source` and `output` give their formats: .csv, .jsonl, else TSV. Raises UserError if `source`
        is not such a table or lacks a column, or `output` cannot be written.
        """
        ours, as_json = ["index", *self.heading], kind_of(output) == "json"
        columns = self.columns or only_column(source, self.options.dialect)
        table = InputTable(source, columns, ours, self.options, self.block_bytes)

        def blocks() -> Iterator[list[list[Any]]]:
            for first, texts, kept in table:

                def of_block(done: int, of: int, first: int = first, texts: tuple[list[str], ...] = texts) -> None:
                    progress(first + max(1, len(texts[0]) * done // of), table.count)

                rows = zip(self.answers(texts, True, of_block, as_json), kept, strict=True)
                yield [[number, *answer, *fields] for number, (answer, fields) in enumerate(rows, first)]

        write_output(output, table_parts(output, [*ours, *table.kept_names], blocks()))
        return f"{table.count:,} predictions: {output}"

    def predict_line(self, line: str) -> str:
        """The answer to a line of standard input, as a line; two texts have a tab between."""
        sides = line.split("\t")
        expected = len(self.columns) or len(sides)
        if len(sides) != expected or expected > 2:
            raise UserError(
                f"the line {line[:50]!r} has {len(sides)} texts; expected {'a text' if expected == 1 else 'two texts'} "
                "a line, with a tab between two"
            )
        (answer,) = self.answers(tuple([side] for side in sides), packing=False)
        return self.said(answer)

    def outputs(self, rows: PackedRows, packing: bool, progress: Progress | None = None) -> dict[str, np.ndarray]:
        """The task's outputs for all rows; not `packing`: one row at once."""
        if self.computes:
            return self.computes(self._parameters, rows, progress)
        if rows.length not in self._outputs:
            at_once = block_rows(rows.positions) if packing else 1
            self._outputs[rows.length] = RowOutputs(self.task, self.model, ComputePolicy(), at_once, World())
        return self._outputs[rows.length](self._parameters, rows, progress)

    def row_length(self, tokens: int, packing: bool) -> int:
        """Positions of rows whose longest item has so many tokens; see `answers` for `packing`.

        Packed rows are no longer than that needs: each of a long model's 8,192 positions would attend to all others.
        """
        return line_length(max(tokens, _PACKED) if packing else tokens, self.length)

    @classmethod
    def writes_table(cls, source: Path, options: Options) -> bool:
        """Whether the answers to a file are a table."""
        return True

    @classmethod
    def look(cls, source: Path, config: dict[str, Any], options: Options) -> None:
        """Find mistakes in the input before TensorFlow is imported.

        What cannot be known without reading the checkpoint is left to `__init__`; its `config` may be damaged.
        """
        columns, own = options.text_columns, config.get("text_columns")
        columns = columns or (tuple(map(str, own)) if isinstance(own, list) else ())
        if not columns and "architectures" in config:  # else the checkpoint's reader finds out what it answers
            columns = only_column(source, options.dialect)
        there = require_columns(source, columns, "--text_columns", options.dialect)
        Table(source, there, []).places(options.keep or (), "--keep")


def read_fine_tuned(checkpoint: OpenCheckpoint, task: PredictingTask) -> Pretrained:
    """Read a checkpoint; raises ReportedError if it is damaged, or lacks a part of a task's head."""
    pretrained = checkpoint.reader.read(task)
    if missing := sorted(task.parameters(pretrained.model).keys() - pretrained.parameters.keys()):
        raise DamagedData(f"{checkpoint} lacks {', '.join(missing)}: its head is not whole; fine-tune it again")
    return pretrained


def line_length(tokens: int, most: int) -> int:
    """Positions of a row for one line: 16 or the next power of two that holds it, so that few graphs are traced."""
    return min(most, max(16, 1 << (tokens - 1).bit_length()))
