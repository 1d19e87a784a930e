"""Predict with a classifier or a regression: for files of texts, and for lines of standard input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.documents import DocumentRows
from bert_horovod.batches.examples.labelled import LabelledRows, LabelledTexts, tokenised
from bert_horovod.batches.special_tokens import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.blocks import BLOCK_BYTES
from bert_horovod.corpus.reading.table_files import kind_of, only_column, table_parts
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.inference.fine_tuned import line_length, read_fine_tuned, row_length
from bert_horovod.inference.input_table import InputTable
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.outputs import RowOutputs, block_rows
from bert_horovod.inference.text_answers import answer_rows, answers, label_sets, probabilities, sigmoid
from bert_horovod.interchange.architectures import SEVERAL_LABELS
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.interchange.suitability import classifier_labels, require_segments
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import write_output
from bert_horovod.tasks.classification import Classification
from bert_horovod.tasks.label_attention import WINDOWS, LabelAttention
from bert_horovod.tasks.multilabel import SEPARATOR, THRESHOLD, Multilabel
from bert_horovod.tasks.regression import Regression

_LABELS = 256  # with more, a block has fewer texts, because each text has a number for each label


class TextPredictor:
    """See inference.predicting.Predictor.

    Args:
        directory: a checkpoint of BertForSequenceClassification, or of a BertModel with label attention, that
            read_pretrained accepts, with its vocabulary.
        options: the user's.

    Raises:
        ReportedError: the checkpoint is damaged, has no vocabulary or no head, or an option does not fit it.
    """

    def __init__(self, directory: Path, options: Options) -> None:
        self._directory, config = directory, read_configuration(directory)
        self.task = text_task(directory, config)
        pretrained = read_fine_tuned(directory, self.task)
        self._columns, self._options = options.text_columns or self.task.text_columns, options
        if options.threshold is not None:
            if not isinstance(self.task, Multilabel):
                raise UserError(
                    f"--threshold is for checkpoints that give a text any number of labels; {directory} has "
                    f"problem_type {self.task.problem_type}: leave it out"
                )
            self.task.threshold = options.threshold
        most = pretrained.model.max_position_embeddings
        self._length = row_length(directory, options.sequence_length, most, usual=most, least=8)
        self._special = special_ids(pretrained.vocabulary, pretrained.tokenizer_settings)
        self._tokenizer = Tokenizer(pretrained.vocabulary, pretrained.tokenizer_settings)
        self._model = pretrained.model
        self._parameters = {name: tf.constant(array) for name, array in pretrained.parameters.items()}
        self._outputs: dict[int, RowOutputs] = {}  # by the length of rows

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; empty for a regression."""
        return () if isinstance(self.task, Regression) else self.task.labels

    def predict_file(self, source: Path, output: Path, progress: Progress) -> str:
        """Write index, prediction, each label's probability and the columns to keep for each row of a table.

        The suffixes of `source` and `output` give their formats: .csv, .jsonl, else TSV.

        Raises:
            UserError: `source` is not such a table or lacks a column, or `output` cannot be written.
        """
        columns = self._columns or only_column(source, self._options.dialect)
        ours = ["index", "prediction", *(f"probability_{label}" for label in self.labels)]
        most = BLOCK_BYTES * _LABELS // max(_LABELS, len(self.labels))
        table = InputTable(source, columns, ours, self._options, most)

        def blocks() -> Iterator[list[list[Any]]]:
            for first, texts, kept in table:

                def of_block(done: int, of: int, first: int = first, texts: tuple[list[str], ...] = texts) -> None:
                    progress(first + max(1, len(texts[0]) * done // of), table.count)

                logits = self.logits(texts, self._length, packing=True, progress=of_block)
                predictions = self._said(logits)
                if isinstance(self.task, Multilabel) and kind_of(output) == "json":
                    named = label_sets(sigmoid(logits), self.labels, self.task.threshold)
                    predictions = [[names, *row[1:]] for names, row in zip(named, predictions, strict=True)]
                rows = enumerate(zip(predictions, kept, strict=True), first)
                yield [[number, *row, *fields] for number, (row, fields) in rows]

        write_output(output, table_parts(output, [*ours, *table.kept_names], blocks()))
        return f"{table.count:,} predictions: {output}"

    def predict_line(self, line: str) -> str:
        """The prediction, then each label's probability, with tabs between; a pair's texts have a tab between."""
        sides = line.split("\t")
        expected = len(self._columns) or len(sides)
        if len(sides) != expected or expected > 2:
            raise UserError(
                f"the line {line[:50]!r} has {len(sides)} texts; expected {'a text' if expected == 1 else 'two texts'} "
                "a line, with a tab between two"
            )
        texts = tuple([side] for side in sides)
        tokens = sum(int(self._tokenizer(side)[1][0]) for side in texts) + 1 + len(sides)
        (row,) = self._said(self.logits(texts, line_length(tokens, self._length), packing=False))
        prediction, *shares = row
        pairs = zip(self.labels, shares, strict=True)
        return "\t".join([str(prediction), *(f"{label}={share:.4f}" for label, share in pairs)])

    def logits(
        self, texts: tuple[list[str], ...], length: int, packing: bool, progress: Progress | None = None
    ) -> np.ndarray:
        """The head's outputs, float32 [examples, outputs], computed in rows of `length` positions."""
        if len(texts) > 1:
            require_segments(self._directory, self._model, "the first text", "the second")
        examples = tokenised(LabelledTexts(texts, [0] * len(texts[0])), self._tokenizer)
        windows = self.task.windows if isinstance(self.task, LabelAttention) else 0
        if windows:
            rows = DocumentRows(examples, self._special, length, 0, windows)
        else:
            rows = LabelledRows(examples, self._special, length, 0, packing)
        if length not in self._outputs:
            at_once = block_rows(length * max(1, windows)) if packing else 1
            self._outputs[length] = RowOutputs(self.task, self._model, ComputePolicy(), at_once, World())
        return rows.by_example(self._outputs[length](self._parameters, rows, progress)["logits"])

    def _said(self, logits: np.ndarray) -> list[list[Any]]:
        if isinstance(self.task, Multilabel):
            return answer_rows(logits, self.labels, self.task.separator, self.task.threshold)
        predictions = answers(logits, len(self.labels))
        if not self.labels:
            return [[number] for number in predictions.tolist()]
        shares = probabilities(logits).round(6).tolist()
        return [[self.labels[number], *share] for number, share in zip(predictions.tolist(), shares, strict=True)]


def text_task(directory: Path, config: dict[str, Any]) -> Classification | Multilabel | Regression:
    """The task of a BertForSequenceClassification's checkpoint; raises the errors of classifier_labels."""
    columns = config.get("text_columns")
    columns = tuple(map(str, columns)) if isinstance(columns, list) else ()
    labels = classifier_labels(directory, config)
    if config.get("problem_type") == SEVERAL_LABELS:
        separator, threshold, windows = (config.get(name) for name in (SEPARATOR, THRESHOLD, WINDOWS))
        separator = separator if isinstance(separator, str) and separator else ","
        threshold = float(threshold) if isinstance(threshold, int | float) else 0.5
        if type(windows) is int and windows > 0:
            return LabelAttention(labels, columns, separator, threshold, windows=windows)
        return Multilabel(labels, columns, separator, threshold)
    return Regression(labels[0], columns) if len(labels) == 1 else Classification(labels, columns)
