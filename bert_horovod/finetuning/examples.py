"""The files that a user names for a fine-tuning; those of labelled texts as examples, in the format of a task."""

import ast
import contextlib
import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.batches.examples.labelled import LabelledTexts, LabelSets
from bert_horovod.corpus.reading.table_files import PLAIN, Dialect, Table, read_table
from bert_horovod.errors import UserError
from bert_horovod.finetuning.glue import GlueTask
from bert_horovod.storage.reading import parse_json, shown
from bert_horovod.wording import listed


@dataclass(frozen=True)
class LabelFormat:
    """How to read a task's files.

    `labels`: the value in the files -> the label's name, in the order of the labels' numbers; empty for real numbers;
    None if the labels are to be learned from the train data.
    """

    columns: tuple[str, ...]  # of the text, or of the pair's two texts
    label_column: str
    labels: dict[str, str] | None
    headless: tuple[str, ...] = ()
    skip_broken: bool = False
    own: bool = False  # whether flags named the columns
    separator: str | None = None  # between an example's labels; None: an example has one label or a real number
    label_columns: tuple[str, ...] = ()  # instead of label_column: of each label a column of 0 and 1
    dialect: Dialect = PLAIN
    usual: bool = False  # whether the separator is the usual one, because no flag gave one

    def table(self, path: Path) -> Table:
        """Read a file; raises UserError as read_table does."""
        labels = self.label_columns or (self.label_column,)
        lists = labels if self.separator is not None and not self.label_columns else ()
        return read_table(path, (*self.columns, *labels), self.dialect, lists, self.headless, self.skip_broken)

    def labels_of(self, table: Table) -> list[list[str]]:
        """The labels in each row, of one label too; raises UserError for a field that holds them in no known form."""
        if self.label_columns:
            places = list(zip(self.label_columns, table.places(self.label_columns, "--label_columns"), strict=True))
            return [
                [name for name, place in places if _is_one(table.path, line, name, fields[place])]
                for line, fields in table.rows
            ]
        (place,) = table.places((self.label_column,), "--label_column")
        if self.separator is None:
            return [[fields[place]] for _, fields in table.rows]
        if self.usual:
            _refuse_other_sign(table, place)
        return [label_names(fields[place], self.separator, table.path, line) for line, fields in table.rows]


class Split(NamedTuple):
    """A file's examples."""

    path: Path
    examples: LabelledTexts
    skipped: int  # broken rows
    part: str = ""  # " (dev part)": the path has train examples too

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return f"{self.path.name}{self.part}"

    @property
    def empty(self) -> int:
        """Examples with an empty text."""
        return sum(not all(text.strip() for text in texts) for texts in zip(*self.examples.texts, strict=True))


def glue_format(task: GlueTask) -> LabelFormat:
    """How to read the files of a task of GLUE."""
    return LabelFormat(task.columns, task.label_column, task.labels, task.headless, task.skip_broken)


def find_split(directory: Path, title: str, split: str) -> Path:
    """The path of `split`.tsv or `split`.tsv.gz in a task's directory; raises UserError if neither exists."""
    for name in (f"{split}.tsv", f"{split}.tsv.gz"):
        if (directory / name).is_file():
            return directory / name
    raise UserError(
        f"--data_dir {directory} has no {split}.tsv or {split}.tsv.gz; expected the directory {title} of GLUE's "
        "download, or --train_file and --dev_file"
    )


def learn_labels(path: Path, form: LabelFormat) -> LabelFormat:
    """The format with the labels of a train file: first numbers, sorted by value, then texts, sorted by letters.

    Raises:
        UserError: as read_table; the label column is missing, a label is empty, or the file has too many different
            labels.
    """
    table = form.table(path)
    labels_of_rows = form.labels_of(table)
    if form.label_columns:
        return replace(form, labels={label: label for label in form.label_columns})
    refuse_vectors(table, form)
    labels = {label for labels in labels_of_rows for label in labels}
    for (line, _), row_labels in zip(table.rows, labels_of_rows, strict=True):
        if form.separator is None and not row_labels[0].strip():
            raise UserError(
                f"{path}, line {line}: the label, in the column {form.label_column!r}, is empty; expected one in each "
                "row: fill it in, or leave the row out"
            )
    if twins := [label for label in labels if label != label.strip() and label.strip() in labels]:
        raise UserError(
            f"{path}: the labels {shown(twins[0].strip())} and {shown(twins[0])} in the column {form.label_column!r} "
            "differ by blanks alone; expected one of them in all rows"
        )
    if len(labels) > _MOST_LABELS:
        raise UserError(
            f"{path} has {len(labels):,} different labels in the column {form.label_column!r}; expected at most "
            f"{_MOST_LABELS}: name another --label_column, or use --task regression for real numbers"
        )
    if not labels:
        raise UserError(f"{path}: no row has a label in the column {form.label_column!r}; expected some to learn from")
    return replace(form, labels={label: label for label in sorted(labels, key=_label_order)})


def label_names(text: str, separator: str, path: Path, line: int) -> list[str]:
    """The labels in a field: a JSON list, or names with `separator` between; blanks around a name are dropped.

    >>> label_names("joy, love", ",", Path("a.csv"), 2), label_names('["a, b"]', ",", Path("a.csv"), 3)
    (['joy', 'love'], ['a, b'])

    Raises:
        UserError: the field begins as a list and is no JSON.
    """
    return list(dict.fromkeys(_names(text, separator, path, line)))


def _names(text: str, separator: str, path: Path, line: int) -> list[str]:
    """The names in a field, also if one is there twice."""
    text = text.strip()
    names: list[Any] = text.split(separator)
    expected = f'expected a JSON list such as ["a", "b"], or names with {separator!r} between'
    if text.startswith("["):
        try:
            names = parse_json(text)
        except ValueError as error:
            raise UserError(
                f"{path}, line {line}: the labels are {shown(text)}, which is no JSON list ({error}); {expected}"
            ) from error
        if nested := [name for name in names if isinstance(name, list | dict)]:
            raise UserError(f"{path}, line {line}: {shown(nested[0])} is no label in {shown(text)}; {expected}")
        names = [name if isinstance(name, str) else json.dumps(name) for name in names if name is not None]
    elif _of_python(text) or _BRACKETS.get(text[:1]) == text[-1:] not in names[0]:
        raise UserError(
            f"{path}, line {line}: the labels are {shown(text)}, a tuple or a set as Python prints it; {expected}"
        )
    return [name.strip() for name in names if name.strip()]


def _refuse_other_sign(table: Table, place: int) -> None:
    """Raise UserError if a comma divides no field of labels, and another sign may: a flag has to say."""
    plain = [(line, fields[place].strip()) for line, fields in table.rows if not fields[place].startswith("[")]
    for sign in _SIGNS if not any("," in text for _, text in plain) else "":
        line, text = next(((line, text) for line, text in plain if sign in text), (0, ""))
        if text:
            raise UserError(
                f"{table.path}, line {line}: the labels are {shown(text)}, and no field has a comma; expected a comma "
                f"between labels: if {sign!r} stands there, give --label_separator {shlex.quote(sign)}, and if it is "
                "part of a name, --label_separator ,"
            )


def refuse_vectors(table: Table, form: LabelFormat) -> None:
    """Raise UserError if by their whole column labels are lists, where one is expected, or vectors of 0 and 1."""
    (place,) = table.places((form.label_column,), "--label_column")
    rows = [(line, fields[place]) for line, fields in table.rows]
    line, text = rows[0]
    if form.separator is None:
        if all(_of_python(text, list) for _, text in rows):
            raise UserError(
                f"{table.path}, line {line}: the label is {shown(text)}, a list, and so is each in the column "
                f"{form.label_column!r}; expected one label in a row; --task multilabel takes several, "
                'as a JSON list such as ["a", "b"]'
            )
        return
    read = ((line, text, _names(text, form.separator, table.path, line)) for line, text in rows)
    # A field such as "1 0 1" is one name, which blanks divide.
    vectors = [(line, text, names[0].split() if len(names) == 1 else names) for line, text, names in read if names]
    line, text, first = vectors[0] if vectors else (0, "", [])
    if len(first) > 1 and all(len(each) == len(first) and _ZERO_ONE.keys() >= set(each) for _, _, each in vectors):
        raise UserError(
            f"{table.path}, line {line}: the labels are {shown(text)}, and each in the column {form.label_column!r} is "
            f"{len(first)} times 0 or 1; expected the labels' names, or numbers of those that a text has: write "
            "[0, 2] for [1, 0, 1], or a column of 0 and 1 for each label, and name these: --label_columns joy,fear,love"
        )


def read_labelled(path: Path, form: LabelFormat) -> Split:
    """Read examples with their labels.

    Raises:
        UserError: as read_table; a column is missing, or a label is none of the task's.
    """
    table = form.table(path)
    columns = table.places(form.columns, "--text_columns" if form.own else "")
    if not form.own and form.label_column not in table.columns:
        raise UserError(
            f"{path} has no column {form.label_column!r}, its columns are {shown(table.columns)}; expected labelled "
            "examples: a test file has no labels"
        )
    numbers = {label: number for number, label in enumerate(form.labels)}
    labels: list[list] = []
    for (line, _), names in zip(table.rows, form.labels_of(table), strict=True):
        if unknown := [name for name in names if form.labels and name not in numbers]:
            raise UserError(f"{path}, line {line}: the label is {shown(unknown[0])}, expected one of {listed(numbers)}")
        labels.append(sorted(numbers[name] for name in names) if numbers else [real(path, line, names[0])])
    if form.separator is not None:
        return Split(path, LabelledTexts(_texts(table, columns), LabelSets(labels, len(numbers))), table.skipped)
    return Split(path, LabelledTexts(_texts(table, columns), [label for (label,) in labels]), table.skipped)


def read_unlabelled(path: Path, form: LabelFormat) -> Split:
    """Read every row's texts from a file without labels; raises UserError as read_table, or for a missing column."""
    table = read_table(path, form.columns, form.dialect)
    places = table.places(form.columns, "--text_columns" if form.own else "")
    return Split(path, LabelledTexts(_texts(table, places), [0] * len(table.rows)), 0)


def real(path: Path, line: int, text: str, what: str = "the label") -> float:
    """The number in a field, whose square float32 holds; raises UserError, which says `what` it is, for other text."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _LARGEST:
        raise UserError(f"{path}, line {line}: {what} is {shown(text)}, expected a number up to {_LARGEST:g}")
    return number


def refuse_one_label(split: Split, form: LabelFormat) -> None:
    """Raise UserError if all train examples have the same label, or labels: nothing can be learned."""
    labels = split.examples.labels
    if len(labels) and all(label == labels[0] for label in labels):
        only: Any = labels[0]
        if form.separator is not None:
            only = listed(list(form.labels)[number] for number in only)
        elif form.labels:
            only = list(form.labels)[only]
        raise UserError(
            f"{split.path}: all {len(split.examples.labels):,} examples have the label {shown(only)}; expected at "
            "least two different ones to learn from"
        )


_MOST_LABELS = 10_000
_LARGEST = 1e15  # size of a number: with larger ones squared errors overflow float32 in training
_SIGNS = "|;"  # which stand between labels in others' files
_BRACKETS = {"(": ")", "{": "}"}
_ZERO_ONE = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
_ZERO_ONE |= {form(name): _ZERO_ONE[name] for name in [*_ZERO_ONE] for form in (str.capitalize, str.upper)}


def _is_one(path: Path, line: int, name: str, text: str) -> bool:
    if text.strip() not in _ZERO_ONE:
        raise UserError(
            f"{path}, line {line}: {shown(text)} in the column {name!r} of --label_columns; expected 0 or 1, whether "
            "the text has this label"
        )
    return _ZERO_ONE[text.strip()]


def _of_python(text: str, *more: type) -> bool:
    """Whether a field is a tuple, a set or a dictionary as Python prints it, or of one of `more` kinds."""
    if not text.startswith(("(", "{", "[", "set(", "frozenset(")):
        return False
    try:
        return isinstance(ast.literal_eval(text.removeprefix("frozenset")), (tuple, set, dict, *more))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _texts(table: Table, columns: list[int]) -> tuple[list[str], ...]:
    return tuple([fields[column] for _, fields in table.rows] for column in columns)


def _label_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, then texts; `nan` and `inf` are texts, because no number orders `nan`."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(label)):
            return False, number, label
    return True, 0.0, label


@dataclass(frozen=True)
class Files:
    """The files that a user names; the other files are looked for in `data_dir`, under their usual names."""

    data_dir: Path | None = None
    train: Path | None = None
    dev: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()

    def refuse_unread_directory(self, has_test: bool) -> None:
        """Raise UserError if nothing of `data_dir` is read: train and dev are named, and it has no test file."""
        if self.data_dir and self.train and self.dev and not has_test:
            raise UserError(
                f"--data_dir {self.data_dir}: train and dev files are named by flags, and it has no test file; leave "
                "it out"
            )
