"""Score a file of predictions by a task's official metrics.

bert-horovod score --task sst2 --predictions RUN/predictions/dev.tsv --data_dir GLUE/SST-2
bert-horovod score --task squad --predictions RUN/predictions.json --data_dir SQUAD
bert-horovod score --task ner --predictions RUN/predictions/dev.tsv

The scores of ner are those of seqeval, by its default rules and, with strict_, by its strict ones; a table by type goes
to standard error.
bert-horovod score --task classification --predictions answers.csv --dev_file dev.csv --label_column stars
"""

import argparse
import json
import sys
from pathlib import Path

from bert_horovod.commands.shared.flags import require_number
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.table_flags import add_dialect, add_label_columns, for_kinds
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.kinds.kinds import kind_of_task, score_file, tasks
from bert_horovod.finetuning.text_data import dialect_of, label_columns_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--task", required=True, choices=tasks(), metavar="TASK", help=", ".join(tasks()))
    parser.add_argument(
        "--predictions",
        required=True,
        type=Path,
        metavar="FILE",
        help="table with the columns index and prediction, as for GLUE's submissions and as predict writes it; SQuAD: "
        "a JSON object, texts by the questions' ids; ner: CoNLL, the predicted tag in the last column, the right one "
        "before it if no dev file is given; or JSON Lines",
    )
    data_dir = parser.add_argument(
        "--data_dir", type=Path, metavar="DIR", help="directory with the dev file, under GLUE's name"
    )
    parser.add_argument("--dev_file", type=Path, metavar="FILE", help="the dev file itself, such as dev_mismatched.tsv")
    read_with(data_dir, "without --dev_file, for a task that is not of your own files", _finds_dev_file)
    label_column = parser.add_argument(
        "--label_column", metavar="C", help="your own files: column of labels (default: label)"
    )
    text_columns = parser.add_argument(
        "--text_columns", metavar="A,B", help="reranking: columns of query and passage (default: query,passage)"
    )
    label_columns = add_label_columns(parser)
    separator = parser.add_argument("--label_separator", metavar="S", help="between labels (default: a comma)")
    dialect = add_dialect(parser)
    null_odds = parser.add_argument(
        "--null_odds", type=Path, metavar="FILE", help="SQuAD 2.0: a JSON object, null odds by the questions' ids"
    )
    threshold = parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="SQuAD 2.0: null odds above it mean no answer, whatever was predicted (default: 1, as officially)",
    )
    for action in (text_columns, label_column, label_columns, separator, *dialect, null_odds):
        for_kinds(action, lambda kind, task: kind.score_flags(task))
    read_with(threshold, "with --null_odds", lambda arguments: arguments.null_odds is not None)


def _finds_dev_file(arguments: argparse.Namespace) -> bool:
    return arguments.dev_file is None and "data_dir" in kind_of_task(arguments.task).score_flags(arguments.task)


def run(arguments: argparse.Namespace) -> None:
    """Print the metrics as a JSON object."""
    require_number("--threshold", arguments.threshold)
    request = Request(
        arguments.predictions,
        arguments.data_dir,
        arguments.dev_file,
        arguments.null_odds,
        1.0 if arguments.threshold is None else arguments.threshold,
        arguments.label_column or "label",
        arguments.label_separator or None,
        label_columns_of(vars(arguments)),
        dialect_of(vars(arguments)),
        tuple(filter(None, (arguments.text_columns or "").split(","))),
    )
    scores = score_file(arguments.task, request)
    if table := kind_of_task(arguments.task).score_table(scores):
        print(table, file=sys.stderr)
    print(json.dumps(scores))
