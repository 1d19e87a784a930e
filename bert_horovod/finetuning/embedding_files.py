"""The files that vectors are trained on and judged by: columns of texts, lists of passages, and scores."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_horovod.batches.examples.labelled import LabelledTexts
from bert_horovod.corpus.reading.table_files import JsonList, read_table, require_columns
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import (
    Files,
    LabelFormat,
    Split,
    find_split,
    glue_format,
    read_labelled,
    read_unlabelled,
)
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.text_data import dialect_of

_USUAL = "query,passage"


def read_items(path: Path, form: LabelFormat) -> Split:
    """The texts of a file's items, with their scores if the format has a column of them; raises UserError."""
    return (read_labelled if form.label_column else read_unscored_items)(path, form)


def judging_format(path: Path, form: LabelFormat) -> LabelFormat:
    """The format of a file to judge by, which need not have the columns of wrong passages: no score reads them."""
    there = require_columns(path, (), "", form.dialect) if len(form.columns) > 2 else ()
    return replace(form, columns=(*form.columns[:2], *(name for name in form.columns[2:] if name in there)))


def read_unscored_items(path: Path, form: LabelFormat) -> Split:
    """The texts of a file's items: of a row one, or in JSON Lines one for each passage of a list of right ones.

    The columns after the second, and lists in them, have wrong passages; each item has all of its row, and an empty
    text for those that others have more.
    """
    if len(form.columns) == 1:
        return read_unlabelled(path, form)
    table = read_table(path, form.columns, form.dialect, form.columns[1:])
    places, items = table.places(form.columns, "--text_columns"), []
    for line, fields in table.rows:
        query, right, *more = (passages_of(fields[place]) for place in places)
        wrong = [passage for each in more for passage in each if passage.strip()]
        if not right:
            raise UserError(f"{path}, line {line}: no passage in the column {form.columns[1]!r}; expected at least one")
        items += [(*query, passage, *wrong) for passage in right]
    width = max(len(form.columns), *map(len, items))
    texts = zip(*((*item, *[""] * (width - len(item))) for item in items), strict=True)
    return Split(path, LabelledTexts(tuple(map(list, texts)), [0] * len(items)), 0)


def passages_of(field: str) -> list[str]:
    """The texts of a field, of JSON's list several; null in a list is none."""
    return [passage for passage in json.loads(field) if passage] if isinstance(field, JsonList) else [field]


def refuse_equal(split: Split, form: LabelFormat, first: int) -> None:
    """Raise UserError if all items have one query or one passage: nothing is wrong for any; from the column `first`."""
    for name, texts in list(zip(form.columns, split.examples.texts, strict=False))[first:2]:
        if len({*texts}) < 2:
            raise UserError(
                f"{split.path}: all {len(texts):,} items{split.part} have the same text in the column {name!r}; "
                "expected at least two different ones, because the passages of others are each one's negatives"
            )


def formats_of(files: Files, flags: Mapping[str, Any]) -> tuple[LabelFormat, LabelFormat, Files]:
    """How train and dev files are read, and the files, found in --data_dir if that is given."""
    columns, scores, dev_columns = (flags.get(name) for name in ("text_columns", "label_column", "dev_columns"))
    if files.data_dir is not None:
        stsb = TASKS["stsb"]
        if columns or scores or dev_columns:
            raise UserError(
                "--data_dir is the directory STS-B of GLUE, whose columns are known; expected it without "
                "--text_columns, --label_column and --dev_columns, or --train_file and --dev_file"
            )
        train = files.train or find_split(files.data_dir, stsb.title, "train")
        dev = files.dev or (find_split(files.data_dir, stsb.title, "dev"),)
        form = glue_format(stsb)
        return form, form, Files(None, train, dev, files.test)
    dev_sets = len(files.dev) + (flags.get("dev_fraction") is not None)
    if files.train is None or dev_sets != 1 or len(files.test) > 1:
        raise UserError(
            "--task embedding: expected --train_file, one --dev_file (or --dev_fraction 0.1, which takes the dev pairs "
            "from the train file), and at most one --test_file; or --data_dir with GLUE's STS-B"
        )
    names = tuple((columns or _USUAL).split(","))
    if not all(names) or len({*names, scores}) <= len(names):
        raise UserError(
            f"--text_columns {columns or _USUAL}{f' and --label_column {scores}' if scores else ''}: expected names, "
            "each once: of the texts, of their passages, and of passages that are wrong"
        )
    form = LabelFormat(names, scores or "", {}, own=True, dialect=dialect_of(flags))
    if dev_columns is None:
        if scores and len(names) != 2:
            raise UserError(f"--label_column {scores}: scores are of two texts; expected two --text_columns")
        if files.test and len(names) == 1:
            raise UserError(
                f"--test_file {files.test[0]}: texts alone have no cosines; give --dev_columns, or leave it out"
            )
        return form, form, files
    pair = tuple(dev_columns.split(","))
    if len(names) != 1 or len(pair) != 2 or not all(pair) or flags.get("dev_fraction") is not None:
        raise UserError(
            f"--dev_columns {dev_columns}: expected two names, of pairs in --dev_file, with one --text_columns"
        )
    return replace(form, label_column=""), replace(form, columns=pair), files
