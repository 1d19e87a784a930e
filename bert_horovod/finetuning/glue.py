"""GLUE's files: tab-separated, UTF-8, never quoted (a reader that honours quotes merges rows), plain or .gz."""

from dataclasses import dataclass
from pathlib import Path

from bert_horovod.batches.labelled import LabelledTexts
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class GlueTask:
    """One task: how its files are to be read."""

    title: str  # GLUE's name of it, and of its directory
    columns: tuple[str, ...]  # of the text, or of the pair's two texts
    label_column: str
    labels: dict[str, str]  # what the file says, and the label's name; their order gives the numbers


TASKS = {"sst2": GlueTask("SST-2", ("sentence",), "label", {"0": "negative", "1": "positive"})}


def read_split(directory: Path, task: GlueTask, split: str) -> LabelledTexts:
    """Read `split`.tsv or `split`.tsv.gz of a task's directory; `split`: "train" or "dev".

    Raises:
        UserError: the file is missing, is no UTF-8, lacks a column, has no rows, or a row's fields or label are not
            what they should be.
        DamagedData: it is compressed and damaged.
    """
    path = _find(directory, task, split)
    with SourceReader(SourceFile(path, path.name, path.stat().st_size)) as reader:
        rows = ((number, line.removesuffix("\r").split("\t")) for number, line in reader.lines())
        _, header = next(rows, (0, []))
        wanted = [_column(path, header, name, task) for name in (*task.columns, task.label_column)]
        numbers = {value: number for number, value in enumerate(task.labels)}
        found: list[tuple[list[str], int]] = []
        for number, fields in rows:
            if len(fields) != len(header):
                raise UserError(
                    f"{path}, line {number}: {len(fields)} fields between tabs, expected {len(header)} as in its "
                    "header; copy GLUE's file again"
                )
            *texts, label = (fields[place] for place in wanted)
            if label not in numbers:
                raise UserError(
                    f"{path}, line {number}: the label is {shown(label)}, expected {' or '.join(task.labels)}"
                )
            found.append((texts, numbers[label]))
    if not found:
        raise UserError(f"{path} has no rows under its header; copy GLUE's file again")
    texts, labels = zip(*found, strict=True)
    return LabelledTexts(tuple(map(list, zip(*texts, strict=True))), list(labels))


def _find(directory: Path, task: GlueTask, split: str) -> Path:
    for name in (f"{split}.tsv", f"{split}.tsv.gz"):
        if (directory / name).is_file():
            return directory / name
    raise UserError(
        f"--data_dir {directory} has no {split}.tsv or {split}.tsv.gz; expected the directory {task.title} of GLUE's "
        "download"
    )


def _column(path: Path, header: list[str], name: str, task: GlueTask) -> int:
    if name not in header:
        raise UserError(
            f"{path} has no column {name!r}, its first line is {shown(header)}; expected GLUE's {task.title} with a "
            "header and tabs between the columns"
        )
    return header.index(name)
