"""Labelled texts and pairs of texts: one label of several, any number of labels, or a real number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.labelled import DocumentRows, LabelledRows, LabelledTokens, tokenised
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.table_writing import table_text
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files, Split
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.kinds.base import DEV_PREDICTIONS, Kind, Request, write_prediction
from bert_horovod.finetuning.scores import confusion_matrix, constant_like
from bert_horovod.finetuning.scoring import score_glue, score_own
from bert_horovod.finetuning.text_data import OWN_METRICS, TextData, glue_data, own_data, own_options
from bert_horovod.inference.text_predictor import TextPredictor, answer_rows, sigmoid
from bert_horovod.inference.text_predictor import answers as numbers_of
from bert_horovod.interchange.suitability import require_segments
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import CLASSIFICATION, MULTILABEL, REGRESSION
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.tasks.label_attention import WINDOWS, LabelAttention
from bert_horovod.tasks.text_head import ARCHITECTURE, THRESHOLD, Classification, Multilabel, Regression
from bert_horovod.training.hooks.base import Hook
from bert_horovod.wording import listed

MOST = 100.0  # weight of a text that has a label, for any number of labels: rarer labels would make training unstable


def balanced(labels: np.ndarray, classes: int) -> tuple[float, ...]:
    """The weights of `classes` labels, from the train examples': int32 [examples], or 1 and 0 [examples, labels].

    Of one label a text: examples / (labels that occur * examples with the label), as scikit-learn's "balanced"; so the
    mean weight of an example is 1. Of any number of labels: examples without the label / examples with it, at most
    MOST, which is the pos_weight of torch's BCEWithLogitsLoss. A label without an example has weight 1.

    >>> balanced(np.array([0, 0, 0, 1]), 2)
    (0.6666666666666666, 2.0)
    >>> balanced(np.array([[1, 0], [0, 1], [0, 1]], np.uint8), 2)
    (2.0, 0.5)
    """
    if labels.ndim == 1:
        counts = np.bincount(labels, minlength=classes)
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        counts = np.count_nonzero(labels, axis=0)
        weights = np.minimum((len(labels) - counts) / np.maximum(counts, 1), MOST)
    return tuple(np.where(counts > 0, weights, 1.0).tolist())


SMALL_MODEL_RATE = 1e-4  # the lowest learning rate for models narrower than bert-base
_BASE_WIDTH = 768
_CONFUSION = DEV_PREDICTIONS.with_stem("confusion")
_MOST_CONFUSED = 1000  # labels of a confusion matrix
_OWN = tuple(name for name in OWN_METRICS if name != "reranking")


class Texts(Kind):
    """See Kind. A split is examples.Split, its answers are the head's outputs, float32 [examples, outputs]."""

    tasks = (*TASKS, *_OWN)
    help = f"of GLUE: {', '.join(TASKS)}; on files of your own: {', '.join(_OWN)}"
    head = ARCHITECTURE
    kind_of_rows = LabelledRows
    predictor = TextPredictor
    noun, outputs = "examples", "these labels"
    data: TextData

    def __init__(self, data: TextData) -> None:
        super().__init__(data)
        self.decides, self._names = data.metrics[0], tuple(data.format.labels.values())
        self._several = data.format.separator is not None
        self.trained = MULTILABEL if self._several else CLASSIFICATION if self._names else REGRESSION

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Texts":
        if task in TASKS:
            return cls(glue_data(task, files))
        columns = tuple((flags.get("text_columns") or "text").split(","))
        return cls(own_data(task, files, columns, flags.get("label_column") or "label", own_options(flags)))

    @classmethod
    def flags(cls, task: str) -> tuple[str, ...]:
        if task in TASKS:
            return ("data_dir",)
        own = ("text_columns", "label_column", "dev_fraction", "encoding", "quoted_tsv")
        return own + (("label_columns", "label_separator", "threshold") if task == "multilabel" else ())

    @classmethod
    def score_flags(cls, task: str) -> tuple[str, ...]:
        return tuple(name for name in cls.flags(task) if name != "text_columns")

    @classmethod
    def claims(cls, config: dict[str, Any]) -> bool:
        return bool(config.get(WINDOWS)) or super().claims(config)

    def content(self, split: Split) -> Any:
        return split.examples

    def check(self, checkpoint: OpenCheckpoint, model: Model, settings: TokenizerSettings) -> None:
        if len(self.data.format.columns) > 1:
            require_segments(checkpoint, model, settings, "the first text", "the second")

    def tokens(self, split: Split, tokenizer: Tokenizer) -> LabelledTokens:
        return tokenised(split.examples, tokenizer)

    def rows(self, recipe: Recipe) -> tuple[type[LabelledRows], dict[str, Any]]:
        windows = recipe.finetuning.windows
        return (DocumentRows, {"windows": windows}) if windows else (LabelledRows, {})

    def task(self, recipe: Recipe) -> Classification | Multilabel | Regression:
        form, head, names = self.data.format, recipe.finetuning, self._names
        weights: tuple[float, ...] = ()
        if head.class_weights == "balanced":
            weights = balanced(self.data.train.examples.label_array(), len(names))
        if form.separator is None:
            if not names:
                return Regression(form.label_column, form.columns)
            return head.task(Classification(names, form.columns, weights))
        settings = names, form.columns, form.separator, self.data.threshold or 0.5, weights
        if not head.windows:
            return Multilabel(*settings)
        if len(form.columns) > 1:
            raise UserError(
                f"finetuning.head = {head.head!r}: windows are of one text; expected one column of text "
                "(--text_columns)"
            )
        return LabelAttention(*settings, windows=head.windows)

    def hooks(self, recipe: Recipe) -> tuple[type[Hook], ...]:
        return recipe.finetuning.hooks()

    def lasting(self) -> list[tuple[str, str, str, str]]:
        if not self._several:
            return []
        threshold = "dev" if self.data.threshold is None else str(self.data.threshold)
        return [("--threshold", threshold, "0.5", "with which its labels were scored")]

    def resumed(self, task: Any, config: dict[str, Any]) -> None:
        if self._several:
            task.threshold = config.get(THRESHOLD, task.threshold)

    def answers(self, task: Any, rows: LabelledRows, outputs: dict[str, np.ndarray], split: Split) -> np.ndarray:
        return rows.by_item(outputs["logits"])

    def scores(self, task: Any, answers: np.ndarray, split: Split) -> dict[str, float]:
        scores = self.data.score(answers, split.examples.label_array())
        if "threshold" in scores:
            task.threshold = scores["threshold"]  # checkpoints are saved after an evaluation, and have it
        return scores

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        return (score_glue if task in TASKS else score_own)(task, request)

    def notices(self, recipe: Recipe) -> list[str]:
        notices = self.data.notices() + rate_notice(recipe)
        if self._names:
            notices.append("labels: " + listed(self._names, 300))
        return notices

    def verdict(self, task: Any, split: Split, answers: np.ndarray, scores: dict[str, float]) -> list[str]:
        (line,) = super().verdict(task, split, answers, scores)
        line = f"{split.name}{line.removeprefix(split.path.name)}, of {len(split.examples.labels):,} examples"
        labels = self._names
        if self._several:
            predicted = sigmoid(answers) >= task.threshold
            if not (predicted == predicted[0]).all():
                return [line]
            names = [name for name, given in zip(labels, predicted[0], strict=True) if given]
            mend = "choose the threshold on the dev set (--threshold dev), or " if self.data.threshold else ""
            return [
                line,
                f"collapsed: every example gets the same labels ({listed(names) or 'none'}); {mend}try more epochs or "
                "another learning rate",
            ]
        constant = constant_like(scores, np.array(split.examples.labels), len(labels))
        if constant is None:
            return [line]
        answer = repr(labels[constant]) if labels else "one number"
        zeros = [name for name, score in scores.items() if not score and name not in ("accuracy", "f1", "macro_f1")]
        undefined = "; a correlation that is undefined is given as 0" if zeros else ""
        return [
            line,
            f"collapsed: these are exactly the scores of predicting {answer} for every example{undefined}; "
            "try another data.seed, a lower learning rate or more epochs",
        ]

    def write(self, output_dir: Path, name: str, split: Split, answers: np.ndarray, task: Any) -> list[str]:
        path, labels = output_dir / DEV_PREDICTIONS.with_stem(name), list(self.data.format.labels)
        if self._several:
            rows = answer_rows(answers, task.labels, task.separator, task.threshold)
            names = ["prediction", *(f"probability_{label}" for label in task.labels)]
            return [_write_table(path, ["index", *names], [[number, *row] for number, row in enumerate(rows)])]
        predictions, said = numbers_of(answers, len(labels)), []
        is_dev = any(split is dev for dev in self.data.dev.values())
        if is_dev and self.data.name == "classification" and len(labels) <= _MOST_CONFUSED:
            matrix = confusion_matrix(predictions, split.examples.label_array(), len(labels)).tolist()
            rows = [[label, *row] for label, row in zip(labels, matrix, strict=True)]
            _write_table(output_dir / _CONFUSION, ["label", *(f"predicted_{label}" for label in labels)], rows)
            said.append(f"confusion matrix, a row for each label: {output_dir / _CONFUSION}")
        return [*said, write_predictions(path, predictions, labels)]


def rate_notice(recipe: Recipe) -> list[str]:
    """A warning of a learning rate that is too low for a small model, if it is."""
    rate, width = recipe.phase[0].learning_rate, recipe.model.hidden_size
    if width >= _BASE_WIDTH or rate >= SMALL_MODEL_RATE:
        return []
    return [
        f"warning: phase.0.learning_rate = {rate:g} is low for a model of width {width}; models smaller than bert-base "
        "need 1e-4 to 5e-4: --set phase.0.learning_rate=1e-4"
    ]


def write_predictions(path: Path, predictions: np.ndarray, labels: list[str]) -> str:
    """Write a file in the format that GLUE wants submitted, index and prediction; returns a line about it.

    `predictions`: numbers of labels, or real numbers, [examples]; `labels`: GLUE's value for each; empty for real
    numbers.
    """
    predicted = [labels[number] if labels else number for number in predictions.tolist()]
    return _write_table(path, ["index", "prediction"], [[number, label] for number, label in enumerate(predicted)])


def _write_table(path: Path, columns: list[str], rows: list[list[Any]]) -> str:
    return write_prediction(path, table_text(path, columns, rows))
