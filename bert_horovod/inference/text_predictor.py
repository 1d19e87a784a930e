"""Predict with a text classifier, a regression or a reranker: for files of texts, and for lines of standard input."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_horovod.batches.examples.base import special_count
from bert_horovod.batches.examples.labelled import (
    DocumentRows,
    LabelledRows,
    LabelledTexts,
    tokenised,
    truncated,
    truncated_longest_first,
)
from bert_horovod.corpus.reading.sources import ITEMS_BYTES
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.predicting import Predictor
from bert_horovod.interchange.architectures import SEVERAL_LABELS
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.interchange.suitability import classifier_labels, require_segments
from bert_horovod.tasks.label_attention import WINDOWS, LabelAttention
from bert_horovod.tasks.text_head import SEPARATOR, THRESHOLD, Classification, Multilabel, Regression, Reranking, ranks

_BLANKS = re.compile("[\t\n\r]")  # blanks in a TSV field


def answers(logits: np.ndarray, labels: int) -> np.ndarray:
    """The answers, from the head's outputs, float32 [examples, outputs], for so many labels; 0: a real number.

    int64 numbers of the likeliest labels, at a tie the first; or real numbers, float64, as files show them: the
    shortest decimals that stand for the float32 values.
    """
    return logits.argmax(axis=-1) if labels else np.array([float(str(logit)) for logit in logits[:, 0]])


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The probability of each label alone: float64 of the same shape, in float64."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))


def label_sets(probabilities: np.ndarray, labels: tuple[str, ...], threshold: float) -> list[list[str]]:
    """The names of each example's labels, those with at least `threshold` of probabilities [examples, labels]."""
    return [[labels[number] for number in np.flatnonzero(row)] for row in probabilities >= threshold]


def joined_labels(names: list[str], separator: str) -> str:
    """Names of labels as a field of a table; a JSON list if a name would not be read back from the plain form."""
    plain = not any(separator in name or name.startswith("[") or name != name.strip() for name in names)
    plain = plain and not _BLANKS.search("".join([separator, *names]))
    return separator.join(names) if plain else json.dumps(names)


def answer_rows(logits: np.ndarray, labels: tuple[str, ...], separator: str, threshold: float) -> list[list[Any]]:
    """For a table: each example's labels in one field, then the probability of each label of all, to 6 decimals."""
    shares = sigmoid(logits)
    names = label_sets(shares, labels, threshold)
    return [[joined_labels(each, separator), *row] for each, row in zip(names, shares.round(6).tolist(), strict=True)]


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax of logits [examples, labels]: float64 of the same shape, in float64."""
    shifted = logits.astype(np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


_LABELS = 256  # with more, a block has fewer texts, because each text has a number for each label


class TextPredictor(Predictor):
    """See Predictor; of BertForSequenceClassification, or of a BertModel with label attention."""

    reads = (*Predictor.reads, "threshold")

    def make_task(self) -> Classification | Multilabel | Regression:
        task, threshold = text_task(self.checkpoint, self.config), self.options.threshold
        if threshold is not None:
            if not isinstance(task, Multilabel):
                raise UserError(
                    f"--threshold is for checkpoints that give a text any number of labels; {self.checkpoint} has "
                    f"problem_type {task.problem_type}: leave it out"
                )
            task.threshold = threshold
        return task

    def prepare(self) -> None:
        _require_as_many(self.config, self.options)
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
            require_segments(self.checkpoint, self.model, self.tokenizer_settings, "the first text", "the second")
        examples = tokenised(LabelledTexts(texts, [0] * len(texts[0])), self._tokenizer)
        tokens = int(examples.counts.sum(axis=1).max()) + special_count(len(texts), self.special)
        length = self.row_length(tokens, packing)
        if isinstance(self.task, LabelAttention):
            rows: LabelledRows = DocumentRows(examples, self.special, length, 0, windows=self.task.windows)
        else:
            truncate = truncated_longest_first if isinstance(self.checkpoint.reader, HuggingFace) else truncated
            rows = LabelledRows(examples, self.special, length, 0, packing, truncate)
        return rows.by_item(self.outputs(rows, packing, progress)["logits"])


def _require_as_many(config: dict[str, Any], options: Options) -> None:
    """Raise UserError if --text_columns names more or fewer texts than a checkpoint was trained to read at once."""
    own = config.get("text_columns")
    own = own if isinstance(own, list) else ["query", "passage"] if ranks(config) else []
    most = len(own) or (1 if config.get(WINDOWS) else 2)
    if (given := len(options.text_columns)) and (given > most or given < len(own)):
        raise UserError(
            f"--text_columns {','.join(options.text_columns)}: the checkpoint reads "
            f"{' and '.join(map(str, own)) or ('one text' if most == 1 else 'one text or a pair')}; expected "
            f"{'one column' if most == 1 else 'two columns' if own else 'one column or two'}"
        )


def text_task(directory: object, config: dict[str, Any]) -> Classification | Multilabel | Regression:
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


class RerankPredictor(TextPredictor):
    """See Predictor; of a BertForSequenceClassification with one output, as sentence-transformers' CrossEncoder has."""

    def make_task(self) -> Reranking:
        task = super().make_task()
        if not isinstance(task, Regression):
            raise UserError(f"--checkpoint {self.checkpoint} ranks by {len(task.labels)} outputs; expected one")
        return Reranking(task.label, task.text_columns or ("query", "passage"))

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        return [[score] for score in sigmoid(self.logits(texts, packing, progress))[:, 0].round(6).tolist()]
