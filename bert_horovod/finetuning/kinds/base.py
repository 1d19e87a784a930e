"""The interface of a kind of labelled data. Job, dataset, evaluation, files at the end and commands use only this.

A kind is three files: its rows in batches/examples/, its head in tasks/, and here its class, with the predictor.
CONTRIBUTING.md says how to add one, and tests/finetuning/kinds/toy_kind.py is a whole one.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.base import LabelledDataset, PackedRows
from bert_horovod.corpus.reading.table_files import PLAIN, Dialect
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import file_error
from bert_horovod.finetuning.examples import Files
from bert_horovod.inference.predicting import Predictor
from bert_horovod.interchange.suitability import named_class
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.storage.writing import write_atomically
from bert_horovod.tasks.base import PredictingTask
from bert_horovod.training.hooks.base import Hook

DEV_PREDICTIONS = Path("predictions", "dev.tsv")  # in output_dir


@dataclass(frozen=True)
class Request:
    """The files that a user wants scored."""

    predictions: Path
    data_dir: Path | None = None  # with the gold file, under its name in the task
    dev_file: Path | None = None  # the gold file itself
    null_odds: Path | None = None  # of SQuAD 2.0
    threshold: float = 1.0  # of the null odds: above it the answer is "no answer", whatever was predicted
    label_column: str = "label"  # of the gold file, for tasks on a user's own files
    separator: str | None = None  # between labels, for multilabel; None: a comma
    label_columns: tuple[str, ...] = ()  # instead of label_column, for multilabel: of each label a column of 0 and 1
    dialect: Dialect = PLAIN  # of the gold file
    text_columns: tuple[str, ...] = ()  # of the gold file, for reranking


class Kind:
    """A kind of labelled data. An object is a user's data of this kind, read and checked."""

    tasks: ClassVar[tuple[str, ...]]  # the values of --task
    help: ClassVar[str]  # for these values
    head: ClassVar[str]  # BERT's class of its checkpoints
    kind_of_rows: ClassVar[type[PackedRows]]
    kind_of_dataset: ClassVar[type[LabelledDataset]] = LabelledDataset
    predictor: ClassVar[type[Predictor]]
    noun: ClassVar[str]  # the items' name for people
    outputs: ClassVar[str]  # what the head is for, as in "these labels"
    phase: ClassVar[dict[str, Any]] = {"sequence_length": 128, "learning_rate": 3e-5, "warmup": 0.1}
    epochs: ClassVar[float] = 3.0
    items: ClassVar[int] = 32  # of a step, about, if the user gives no batch
    packing_pays: ClassVar[float] = 0.0  # items of a packed row, on average, up to which rows have one item each
    reads: ClassVar[tuple[str, ...]] = ()  # see `flags`
    score_reads: ClassVar[tuple[str, ...]] = ()  # see `score_flags`
    has_tests: ClassVar[bool] = True  # whether there are files without labels
    stops_early: ClassVar[bool] = True  # whether its objects have `decides`
    best_score: ClassVar[float] = 1.0  # 100: scores are percentages
    last_file: ClassVar[Path] = DEV_PREDICTIONS  # in output_dir: the last file that a run writes

    trained: str  # what is trained, as in recipe.fields.ReadIf
    decides: str | None = None  # the score whose best checkpoint is kept, more is better; None: none is named

    def __init__(self, data: Any) -> None:
        # It has `name`, --task; `train`; `dev`, by the suffix of their metrics' names, "" for the first; and `test`, by
        # the name of the file of predictions. A split is whatever the kind reads from a file, with the file's `path`.
        self.data = data

    # What it reads

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Kind":
        """Read and check the files of a --task; raises ReportedError if one is missing, or not in the task's format.

        `flags`: values of the flags that the method `flags` names; one that is missing or None was not given.
        """
        raise NotImplementedError

    @classmethod
    def flags(cls, task: str) -> tuple[str, ...]:
        """The flags that a --task reads, beside those of its files; "data_dir": it finds files by their names."""
        return cls.reads

    @classmethod
    def score_flags(cls, task: str) -> tuple[str, ...]:
        """The same for `score`."""
        return cls.score_reads

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        """Declare the flags of `finetune` that this kind alone has."""

    @classmethod
    def claims(cls, config: dict[str, Any]) -> bool:
        """Whether a checkpoint is of this kind; `config`: the content of its config.json, which may be damaged."""
        return named_class(config) == cls.head

    def content(self, split: Any) -> Any:
        """All of a split but its path, as JSON can hold it: ranks compare it."""
        raise NotImplementedError

    # Its rows and its task

    def check(self, checkpoint: OpenCheckpoint, model: Model, settings: TokenizerSettings) -> None:
        """Take from the checkpoint what the user leaves to it; raises UserError if it does not fit these data."""

    def tokenizer(self, vocabulary: list[str], settings: TokenizerSettings) -> Any:
        """What `tokens` needs of the checkpoint."""
        return Tokenizer(vocabulary, settings)

    def tokens(self, split: Any, tokenizer: Any) -> Any:
        """A split's arrays, of which `kind_of_rows` makes rows; raises UserError if there is nothing to learn from."""
        raise NotImplementedError

    def rows(self, recipe: Recipe) -> tuple[type[PackedRows], dict[str, Any]]:
        """The rows of these arrays, and further arguments for them."""
        return self.kind_of_rows, {}

    def dataset(
        self, vocabulary: list[str], settings: TokenizerSettings, recipe: Recipe, splits: dict[str, Any]
    ) -> LabelledDataset:
        """The dataset of arrays by split: "train", "held_out" and the suffix of a dev set, and test sets' names."""
        path = self.data.train.path.parent
        return self.kind_of_dataset(path, vocabulary, settings, recipe, splits, *self.rows(recipe), self.described())

    def described(self) -> tuple:
        """What else tells the dataset from others; see LabelledDataset."""
        return ()

    def task(self, recipe: Recipe) -> PredictingTask:
        """The task to train, a new object for each run; raises UserError for a setting that does not fit the data."""
        raise NotImplementedError

    def hooks(self, recipe: Recipe) -> tuple[type[Hook], ...]:
        """Hooks that this training needs beside those of all."""
        return ()

    def lasting(self) -> list[tuple[str, str, str, str]]:
        """Flags that a run keeps: flag, value, usual value and why, as for initialisation.refuse_another."""
        return []

    def resumed(self, task: PredictingTask, config: dict[str, Any]) -> None:
        """Take what evaluations had changed in the task from the checkpoint from which the run resumes."""

    # Its answers and scores

    def answers(self, task: PredictingTask, rows: PackedRows, outputs: dict[str, np.ndarray], split: Any) -> Any:
        """The answers to a split's items, in their order, from the outputs of all its rows."""
        raise NotImplementedError

    def scores(self, task: PredictingTask, answers: Any, split: Any) -> dict[str, float]:
        """The official scores of answers, by names without suffix; the first sorts the runs of a sweep."""
        raise NotImplementedError

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        """The scores of a file of predictions, for the command `score`; raises ReportedError."""
        raise NotImplementedError

    @classmethod
    def score_table(cls, scores: dict[str, Any]) -> str:
        """A table that `score` shows beside them, or ""."""
        return ""

    # What it says and writes

    def notices(self, recipe: Recipe) -> list[str]:
        """Lines about the data, printed at a run's start."""
        return []

    def size(self, split: Any, rows: PackedRows) -> str:
        """A split's size in words."""
        return f"{len(rows.lengths):,} {self.noun}"

    def verdict(self, task: PredictingTask, split: Any, answers: Any, scores: dict[str, float]) -> list[str]:
        """Lines at a run's end: scores, and whether the model does no better than one answer for all."""
        text = ", ".join(f"{name.replace('_', ' ')} {score:.4f}" for name, score in scores.items())
        return [f"{split.path.name}: {text}"]

    def write(self, output_dir: Path, name: str, split: Any, answers: Any, task: PredictingTask) -> list[str]:
        """Write the files of a split's predictions, called `name`, on rank 0; returns lines about them to print.

        Raises ReportedError if a file cannot be written.
        """
        raise NotImplementedError


def write_prediction(path: Path, text: str) -> str:
    """Write a file into a directory that is made if needed; returns a line about it to print."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error
    return f"predictions: {path}"
