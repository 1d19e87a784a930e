"""Find, read and check the files of a classification or regression; divide examples into train and dev parts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledTexts, LabelSets
from bert_horovod.corpus.reading.table_files import PLAIN, Dialect, require_encoding
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import (
    Files,
    LabelFormat,
    Split,
    find_split,
    glue_format,
    learn_labels,
    read_labelled,
    read_unlabelled,
    refuse_one_label,
)
from bert_horovod.finetuning.glue import TASKS, TestSet
from bert_horovod.finetuning.scores import multilabel_scores, score, score_names
from bert_horovod.inference.text_predictor import answers, sigmoid
from bert_horovod.wording import counted

OWN_METRICS = {  # of tasks on own files
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "multilabel": (),  # finetuning/scores.py: they depend on the number of labels
    "reranking": ("mrr_10", "accuracy"),  # finetuning/kinds/rerankers.py
}


_NONE = ("nan", "none", "null", "na", "n/a", "<na>", "nat")  # of pandas, NumPy, Python, R and others


@dataclass(frozen=True)
class OwnOptions:
    """A user's options for files of their own."""

    dev_fraction: float | None = None  # of the train file's examples, if there is no dev file
    separator: str | None = None  # between an example's labels in the label column, for multilabel; None: a comma
    label_columns: tuple[str, ...] = ()  # instead of a label column, for multilabel: of each label a column of 0 and 1
    threshold: float | None = 0.5  # a label is predicted from this probability on; None: chosen on the dev set
    dialect: Dialect = PLAIN


@dataclass(frozen=True)
class TextData:
    """A task's train, dev and test examples, and its metrics."""

    name: str  # --task
    format: LabelFormat
    metrics: tuple[str, ...]  # the best run is the best by the first
    train: Split
    dev: dict[str, Split]  # by the suffix of their metrics' names; "" for the first
    test: dict[str, Split]  # by the name of the file of predictions
    threshold: float | None = 0.5  # see OwnOptions

    def score(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """The metrics, from the head's outputs [examples, outputs] and the labels as LabelledTexts.label_array."""
        if self.format.separator is not None:
            return multilabel_scores(sigmoid(logits), labels, self.threshold)
        return score(answers(logits, len(self.format.labels)), labels, self.metrics)

    def notices(self) -> list[str]:
        """Lines about the data, printed at a run's start."""
        lines = []
        for split in (self.train, *self.dev.values(), *self.test.values()):
            if split.skipped:
                lines.append(f"{split.path}: {split.skipped:,} broken rows are skipped: they lack fields")
            if split.empty:
                lines.append(
                    f"warning: {split.path}: {split.empty:,} examples have an empty text; it stands as [CLS] [SEP]"
                )
        if self.format.own and self.format.labels:
            lines += self._label_notices()
        if {"pearson", "spearman"}.intersection(self.metrics):
            lines += constant_notice(self.dev[""], self.dev[""].examples.label_array())
        return lines

    def _label_notices(self) -> list[str]:
        """Warnings of labels that stand for none in other programs, and of those that no train example has."""
        lines, several = [], self.format.separator is not None
        labels = self.train.examples.label_array()
        for number, name in enumerate(self.format.labels):
            count = int(np.count_nonzero(labels[:, number] if several else labels == number))
            if name.lower() in _NONE:
                lines.append(
                    f"warning: {self.train.path}: {counted(count, 'example')} with the label {name!r}, which other "
                    f"programs write for none; it is learned as a label: if it is none, leave these rows out"
                    f"{', or the field empty' if several else ''}"
                )
            if not count:
                lines.append(f"warning: {self.train.name}: no example has the label {name!r}")
        return lines


def glue_data(name: str, files: Files) -> TextData:
    """The files of a task of GLUE; raises ReportedError if a file is missing, or not in the task's format."""
    task = TASKS[name]
    form = glue_format(task)
    train, dev = files.train, files.dev
    if train is None:
        train = find_split(_directory(files, task.title), task.title, "train")
    if not dev:
        dev = tuple(find_split(_directory(files, task.title), task.title, split) for split in task.dev)
    if len(dev) > len(task.dev):
        raise UserError(f"--dev_file is given {len(dev)} times; {task.title} has {' and '.join(task.dev)}")
    train_split = read_labelled(train, form)
    refuse_one_label(train_split, form)
    suffixes = ["", *(f"_{split.removeprefix('dev_')}" for split in task.dev[1:])]
    tests = [test_set.name for test_set in task.test_sets]
    if len(files.test) > len(tests):
        raise UserError(f"--test_file is given {len(files.test)} times; {task.title} has {', '.join(tests)}")
    paths = files.test or [_optional(files.data_dir, test_set) for test_set in task.test_sets]
    test = {name: read_unlabelled(path, form) for name, path in zip(tests, paths, strict=False) if path is not None}
    files.refuse_unread_directory(bool(test))
    return TextData(
        name,
        form,
        task.metrics,
        train_split,
        {suffix: read_labelled(path, form) for suffix, path in zip(suffixes, dev, strict=False)},
        test,
    )


def own_data(
    name: str, files: Files, text_columns: tuple[str, ...], label_column: str, options: OwnOptions = OwnOptions()
) -> TextData:
    """The user's own files, with named columns; labels are learned from the train file.

    Raises ReportedError if a file is missing, lacks one of these columns, or has a label that the train file lacks.
    """
    if files.data_dir is not None:
        raise UserError(f"--data_dir is not for --task {name}, whose files you name: --train_file; leave it out")
    dev_sets = len(files.dev) + (options.dev_fraction is not None)
    if files.train is None or dev_sets != 1 or len(files.test) > 1:
        raise UserError(
            f"--task {name}: expected --train_file, one --dev_file (or --dev_fraction 0.1, which takes the dev "
            "examples from the train file), and at most one --test_file"
        )
    if not 1 <= len(text_columns) <= 2:
        raise UserError(f"--text_columns {','.join(text_columns)}: expected one name, or two with a comma between")
    if options.label_columns:
        require_label_columns(options.label_columns, text_columns)
    elif len({*text_columns, label_column}) <= len(text_columns):
        raise UserError(
            f"--text_columns {','.join(text_columns)} and --label_column {label_column} name a column twice; expected "
            "each once"
        )
    form = LabelFormat(
        text_columns,
        label_column,
        {} if name in ("regression", "reranking") else None,
        own=True,
        separator=options.separator or "," if name == "multilabel" else None,
        usual=options.separator is None,
        label_columns=options.label_columns,
        dialect=options.dialect,
    )
    if form.labels is None:
        form = learn_labels(files.train, form)
    train = read_labelled(files.train, form)
    fraction = options.dev_fraction
    train, dev = (
        (train, read_labelled(files.dev[0], form))
        if fraction is None
        else two_parts(train, fraction, by_query=name == "reranking")
    )
    refuse_one_label(train, form)
    test = {"test": read_unlabelled(files.test[0], form)} if files.test else {}
    metrics = OWN_METRICS[name] or score_names(len(form.labels), options.threshold is None)
    return TextData(name, form, metrics, train, {"": dev}, test, options.threshold)


def constant_notice(split: Split, labels: np.ndarray) -> list[str]:
    """A warning if no correlation with a dev set's real numbers is defined, because they are equal; else none."""
    if np.ptp(labels):
        return []
    return [
        f"warning: {split.name}: all labels are {labels[0]:g}: correlations with them are undefined, and given as 0"
    ]


def own_options(flags: Mapping[str, Any]) -> OwnOptions:
    """The options of a command's flags; raises UserError for a value that is none."""
    threshold = threshold_of(flags.get("threshold"))
    return OwnOptions(
        flags.get("dev_fraction"),
        flags.get("label_separator") or None,
        label_columns_of(flags),
        threshold,
        dialect_of(flags),
    )


def dialect_of(flags: Mapping[str, Any]) -> Dialect:
    """How tables are written, by --encoding and --quoted_tsv; raises UserError for an unknown encoding."""
    return Dialect(require_encoding(flags.get("encoding") or "utf-8"), bool(flags.get("quoted_tsv")))


def label_columns_of(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that --label_columns gives; raises UserError if a flag of another form of labels is given too."""
    if not flags.get("label_columns"):
        return ()
    for name in ("label_column", "label_separator"):
        if flags.get(name) not in (None, "label"):
            raise UserError(f"--{name} and --label_columns: labels stand in one column or in several; give one of both")
    return tuple(flags["label_columns"].split(","))


def threshold_of(text: str | None) -> float | None:
    """The value of --threshold for labels: a probability; None: "dev", to choose it on the dev set.

    Raises UserError if it is neither.
    """
    if text in (None, "dev"):
        return 0.5 if text is None else None
    try:
        threshold = float(text)
    except ValueError:
        threshold = -1.0
    if not 0 < threshold < 1:
        raise UserError(f"--threshold {text}: expected a probability between 0 and 1, or dev")
    return threshold


def require_label_columns(names: tuple[str, ...], text_columns: tuple[str, ...] = ()) -> None:
    """Raise UserError unless these can be the columns of --label_columns."""
    given = f"--label_columns {','.join(names)}"
    if len(names) < 2 or not all(names):
        raise UserError(
            f"{given}: expected two names or more, with commas between; one column of 0 and 1 is a --label_column for "
            "--task classification"
        )
    if len({*names, *text_columns}) < len(names) + len(text_columns):
        raise UserError(f"{given}: names a column twice, or one of --text_columns; expected each once")


def _directory(files: Files, title: str) -> Path:
    if files.data_dir is None:
        raise UserError(
            f"expected --data_dir, the directory {title} of GLUE's download, or --train_file and --dev_file"
        )
    return files.data_dir


def _optional(directory: Path | None, test: TestSet) -> Path | None:
    names = (f"{file}{suffix}" for file in test.files for suffix in (".tsv", ".tsv.gz"))
    return next((path for name in names if directory and (path := directory / name).is_file()), None)


_SEED = 0  # the same for all runs, so that runs with different data.seed have one dev set


def two_parts(split: Split, fraction: float, by_query: bool = False) -> list[Split]:
    """A file's examples as train and dev part; see `divided`."""
    parts = zip(("train", "dev"), divided(split.examples, fraction, by_query), strict=True)
    return [split._replace(examples=part, part=f" ({kind} part)") for kind, part in parts]


def divided(examples: LabelledTexts, fraction: float, by_query: bool = False) -> tuple[LabelledTexts, LabelledTexts]:
    """A file's examples as train and dev part, each in the file's order.

    Each label's share in the dev part is its share of all examples, to rounding. An example with several labels is
    counted for its rarest label. An example that is alone with its label stays in the train part. `by_query`: the
    share is one of queries, the first texts, and a query's examples stay together. Raises UserError if `fraction` is
    not above 0 and at most 0.5, or there are too few examples.
    """
    if not 0 < fraction <= 0.5:
        raise UserError(f"--dev_fraction {fraction:g}: expected more than 0 and at most 0.5, as in 0.1")
    if by_query:
        first = np.unique(np.asarray(examples.texts[0], object), return_inverse=True)[1]
        numbers = np.flatnonzero(np.isin(first, _dev_numbers([0] * (int(first.max(initial=-1)) + 1), fraction)))
    else:
        numbers = _dev_numbers(_groups(examples), fraction)
    if not len(numbers):
        raise UserError(
            f"--dev_fraction {fraction:g} of {len(examples.labels):,} examples leaves no dev example; expected more "
            "examples, a greater fraction, or --dev_file"
        )
    in_dev = np.zeros(len(examples.labels), bool)
    in_dev[numbers] = True
    return _part(examples, np.flatnonzero(~in_dev)), _part(examples, np.flatnonzero(in_dev))


def _groups(examples: LabelledTexts) -> list[Any]:
    """The label by which each example is divided; real numbers are all of one group."""
    labels = examples.labels
    if isinstance(labels, LabelSets):
        counts = Counter(label for numbers in labels for label in numbers)
        return [min(numbers, key=lambda label: (counts[label], label), default=-1) for numbers in labels]
    return [0 if isinstance(label, float) else label for label in labels]


def _dev_numbers(groups: list[Any], fraction: float) -> np.ndarray:
    """The numbers of the dev examples, in no order: of each group its share, by largest remainders."""
    members: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    exact = {group: fraction * len(numbers) for group, numbers in members.items()}
    taken = {group: int(share) for group, share in exact.items()}
    more = round(fraction * len(groups)) - sum(taken.values())
    by_remainder = sorted(members, key=lambda group: (taken[group] - exact[group], str(group)))
    for group in [group for group in by_remainder if taken[group] + 1 < len(members[group])][: max(more, 0)]:
        taken[group] += 1
    random = np.random.default_rng(_SEED)
    parts = [random.permutation(members[group])[: taken[group]] for group in sorted(members, key=str)]
    return np.concatenate(parts)


def _part(examples: LabelledTexts, numbers: np.ndarray) -> LabelledTexts:
    labels: Any = [examples.labels[number] for number in numbers]
    if isinstance(examples.labels, LabelSets):
        labels = LabelSets(labels, examples.labels.classes)
    return LabelledTexts(tuple([side[number] for number in numbers] for side in examples.texts), labels)
