"""Predict with a classifier or a regression: for files of texts, and for lines of standard input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.base import special_count
from bert_horovod.batches.examples.labelled import DocumentRows, LabelledRows, LabelledTexts, tokenised
from bert_horovod.corpus.reading.sources import ITEMS_BYTES
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.inference.options import Progress
from bert_horovod.inference.predicting import Predictor, line_length
from bert_horovod.inference.text_answers import answer_rows, answers, label_sets, probabilities, sigmoid
from bert_horovod.interchange.architectures import SEVERAL_LABELS
from bert_horovod.interchange.suitability import classifier_labels, require_segments
from bert_horovod.tasks.label_attention import WINDOWS, LabelAttention
from bert_horovod.tasks.text_head import SEPARATOR, THRESHOLD, Classification, Multilabel, Regression

_LABELS = 256  # with more, a block has fewer texts, because each text has a number for each label


class TextPredictor(Predictor):
    """See Predictor; of BertForSequenceClassification, or of a BertModel with label attention."""

    reads = (*Predictor.reads, "threshold")

    def make_task(self) -> Classification | Multilabel | Regression:
        task, threshold = text_task(self.directory, self.config), self.options.threshold
        if threshold is not None:
            if not isinstance(task, Multilabel):
                raise UserError(
                    f"--threshold is for checkpoints that give a text any number of labels; {self.directory} has "
                    f"problem_type {task.problem_type}: leave it out"
                )
            task.threshold = threshold
        return task

    def prepare(self) -> None:
        self._tokenizer = Tokenizer(self.vocabulary, self.tokenizer_settings)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; empty for a regression."""
        return () if isinstance(self.task, Regression) else self.task.labels

    @property
    def heading(self) -> Sequence[str]:
        return ["prediction", *(f"probability_{label}" for label in self.labels)]

    @property
    def block_bytes(self) -> int:
        return ITEMS_BYTES * _LABELS // max(_LABELS, len(self.labels))

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        logits, task = self.logits(texts, packing, progress), self.task
        if isinstance(task, Multilabel):
            rows = answer_rows(logits, self.labels, task.separator, task.threshold)
            if not as_json:
                return rows
            named = label_sets(sigmoid(logits), self.labels, task.threshold)
            return [[names, *row[1:]] for names, row in zip(named, rows, strict=True)]
        predictions = answers(logits, len(self.labels)).tolist()
        if not self.labels:
            return [[number] for number in predictions]
        shares = probabilities(logits).round(6).tolist()
        return [[self.labels[number], *share] for number, share in zip(predictions, shares, strict=True)]

    def said(self, answer: list[Any]) -> str:
        """The prediction, then each label's probability, with tabs between."""
        prediction, *shares = answer
        pairs = zip(self.labels, shares, strict=True)
        return "\t".join([str(prediction), *(f"{label}={share:.4f}" for label, share in pairs)])

    def logits(self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None) -> np.ndarray:
        """The head's outputs, float32 [examples, outputs]; arguments as in `answers`."""
        if len(texts) > 1:
            require_segments(self.directory, self.model, self.tokenizer_settings, "the first text", "the second")
        examples = tokenised(LabelledTexts(texts, [0] * len(texts[0])), self._tokenizer)
        tokens = int(examples.counts.sum(axis=1).max()) + special_count(len(texts), self.special)
        length = self.length if packing else line_length(tokens, self.length)
        if isinstance(self.task, LabelAttention):
            rows: LabelledRows = DocumentRows(examples, self.special, length, 0, windows=self.task.windows)
        else:
            rows = LabelledRows(examples, self.special, length, 0, packing)
        return rows.by_item(self.outputs(rows, packing, progress)["logits"])


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
