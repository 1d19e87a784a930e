"""Read files of labelled texts as examples, in the format that a task expects."""

import contextlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bert_horovod.batches.examples.labelled import LabelledTexts
from bert_horovod.corpus.reading.table_files import Table, read_table
from bert_horovod.errors import UserError
from bert_horovod.finetuning.glue import GlueTask
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class Format:
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


class Split(NamedTuple):
    """A file's examples."""

    path: Path
    examples: LabelledTexts
    skipped: int  # broken rows

    @property
    def empty(self) -> int:
        """Examples with an empty text."""
        return sum(not all(text.strip() for text in texts) for texts in zip(*self.examples.texts, strict=True))


def glue_format(task: GlueTask) -> Format:
    """How to read the files of a task of GLUE."""
    return Format(task.columns, task.label_column, task.labels, task.headless, task.skip_broken)


def find_split(directory: Path, title: str, split: str) -> Path:
    """The path of `split`.tsv or `split`.tsv.gz in a task's directory; raises UserError if neither exists."""
    for name in (f"{split}.tsv", f"{split}.tsv.gz"):
        if (directory / name).is_file():
            return directory / name
    raise UserError(
        f"--data_dir {directory} has no {split}.tsv or {split}.tsv.gz; expected the directory {title} of GLUE's "
        "download, or --train_file and --dev_file"
    )


def learn_labels(path: Path, form: Format) -> Format:
    """The format with the labels of a train file: first numbers, sorted by value, then texts, sorted by letters.

    Raises:
        UserError: as read_table; the label column is missing, a label is empty, or the file has too many different
            labels.
    """
    table = read_table(path)
    (place,) = table.places((form.label_column,), "--label_column")
    labels = {fields[place] for _, fields in table.rows}
    for line, fields in table.rows:
        if not fields[place].strip():
            raise UserError(
                f"{path}, line {line}: the label, in the column {form.label_column!r}, is empty; expected one in each "
                "row: fill it in, or leave the row out"
            )
    if len(labels) > _MOST_LABELS:
        raise UserError(
            f"{path} has {len(labels):,} different labels in the column {form.label_column!r}; expected at most "
            f"{_MOST_LABELS}: name another --label_column, or use --task regression for real numbers"
        )
    return replace(form, labels={label: label for label in sorted(labels, key=_label_order)})


def read_labelled(path: Path, form: Format) -> Split:
    """Read examples with their labels.

    Raises:
        UserError: as read_table; a column is missing, or a label is none of the task's.
    """
    table = read_table(path, form.headless, form.skip_broken)
    columns = table.places(form.columns, "--text_columns" if form.own else "")
    if form.label_column not in table.columns:
        raise UserError(
            f"{path} has no column {form.label_column!r}, its columns are {shown(table.columns)}; expected labelled "
            f"examples: {'name its column of labels with --label_column' if form.own else 'a test file has no labels'}"
        )
    (label_column,) = table.places((form.label_column,))
    numbers = {label: number for number, label in enumerate(form.labels)}
    labels = []
    for line, fields in table.rows:
        label = fields[label_column]
        if not form.labels:
            labels.append(_real(table, line, label))
        elif label in numbers:
            labels.append(numbers[label])
        else:
            expected = ", ".join(numbers)
            raise UserError(f"{path}, line {line}: the label is {shown(label)}, expected one of {expected:.200}")
    return Split(path, LabelledTexts(_texts(table, columns), labels), table.skipped)


def read_unlabelled(path: Path, form: Format) -> Split:
    """Read every row's texts from a file without labels; raises UserError as read_table, or for a missing column."""
    table = read_table(path)
    places = table.places(form.columns, "--text_columns" if form.own else "")
    return Split(path, LabelledTexts(_texts(table, places), [0] * len(table.rows)), 0)


def refuse_one_label(split: Split, form: Format) -> None:
    """Raise UserError if all train examples have the same label: nothing can be learned."""
    if len(split.examples.labels) and len(set(split.examples.labels)) == 1:
        only = split.examples.labels[0]
        only = list(form.labels)[only] if form.labels else only
        raise UserError(
            f"{split.path}: all {len(split.examples.labels):,} examples have the label {shown(only)}; expected at "
            "least two different ones to learn from"
        )


_MOST_LABELS = 10_000


def _texts(table: Table, columns: list[int]) -> tuple[list[str], ...]:
    return tuple([fields[column] for _, fields in table.rows] for column in columns)


def _real(table: Table, line: int, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{table.path}, line {line}: the label is {shown(text)}, expected a number")
    return number


def _label_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, then texts; `nan` and `inf` are texts, because no number orders `nan`."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(label)):
            return False, number, label
    return True, 0.0, label
