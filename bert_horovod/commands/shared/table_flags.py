"""Flags that say how a user's tables are written, and how labels are read from them and given."""

import argparse
from collections.abc import Callable
from pathlib import Path

from bert_horovod.commands.shared.parser import read_with
from bert_horovod.corpus.reading.table_files import kind_of
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.finetuning.kinds.kinds import kind_of_task, tasks


def add_dialect(parser: argparse.ArgumentParser) -> tuple[argparse.Action, argparse.Action]:
    """Declare --encoding and --quoted_tsv."""
    encoding = parser.add_argument(
        "--encoding", metavar="NAME", help="of tables, as in latin-1, cp1252 or utf-16 (default: utf-8)"
    )
    quoted_tsv = parser.add_argument(
        "--quoted_tsv",
        action="store_true",
        help="TSV tables have quotation marks around fields, as spreadsheets and pandas write them",
    )
    read_with(quoted_tsv, "with a file that is not CSV (.csv) or JSON Lines (.jsonl)", _names_tsv)
    return encoding, quoted_tsv


def _names_tsv(arguments: argparse.Namespace) -> bool:
    names = ("input", "corpus", "train_file", "dev_file", "test_file", "predictions")
    named = [getattr(arguments, name, None) for name in names]
    paths = [path for value in named for path in (value if isinstance(value, list) else [value]) if path]
    return any(kind_of(Path(path)) == "tsv" for path in paths)


def add_label_columns(parser: argparse.ArgumentParser) -> argparse.Action:
    """Declare --label_columns."""
    return parser.add_argument(
        "--label_columns",
        metavar="A,B",
        help="instead of --label_column a column for each label, with 1 where a text has it, else 0",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a user's own labelled files: columns, labels, the dev part, and those of `add_dialect`."""
    text_columns = parser.add_argument(
        "--text_columns",
        metavar="A[,B]",
        help="columns of text in your own files, one or two (default: text; reranking: query,passage) or, for "
        "embedding, up to three: a text's, a pair's, and a passage that is wrong (default: query,passage); for ner "
        "that of words: in CoNLL files a number from 1 (default: the first), in JSON Lines a key (default: tokens)",
    )
    label_column = parser.add_argument(
        "--label_column",
        metavar="C",
        help="column of labels (default: label); for embedding that of pairs' scores (default: none); for ner that of "
        "tags: a number (default: -1, the last), or a key (default: tags)",
    )
    label_columns = add_label_columns(parser)
    separator = parser.add_argument(
        "--label_separator",
        metavar="S",
        help="multilabel: between a text's labels in their column (default: a comma); a JSON list needs none",
    )
    threshold = parser.add_argument(
        "--threshold",
        metavar="X",
        help="multilabel: a text gets the labels with at least this probability (default: 0.5); dev: chosen on the dev "
        "set, for the best micro F1, and kept in the checkpoint",
    )
    dev_fraction = parser.add_argument(
        "--dev_fraction",
        type=float,
        metavar="X",
        help="your own files, in place of --dev_file: this fraction of the train file's examples, as in 0.1; of each "
        "label its share, or of queries with all their passages, and the same examples in each run",
    )
    for action in (text_columns, label_column, label_columns, separator, threshold, dev_fraction, *add_dialect(parser)):
        for_kinds(action, lambda kind, task: kind.flags(task))


def for_tasks(action: argparse.Action, *tasks: str) -> None:
    """Declare that a flag is read with some of the values of --task only."""
    read_with(action, f"with --task {' or '.join(tasks)}", lambda arguments: arguments.task in tasks)


def for_kinds(action: argparse.Action, flags_of: Callable[[type[Kind], str], tuple[str, ...]]) -> None:
    """Declare that a flag is read with those values of --task whose kind says so: Kind.flags or Kind.score_flags."""
    kinds = ((task, kind_of_task(task)) for task in tasks())
    for_tasks(action, *(task for task, kind in kinds if action.dest in flags_of(kind, task)))
