"""Score a file of predictions by a task's official metrics.

bert-horovod score --task sst2 --predictions RUN/predictions/dev.tsv --data_dir GLUE/SST-2
"""

import argparse
import json
from pathlib import Path

from bert_horovod.recipe.sections import GLUE_TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--task", required=True, choices=GLUE_TASKS, metavar="TASK", help=", ".join(GLUE_TASKS))
    parser.add_argument(
        "--predictions",
        required=True,
        type=Path,
        metavar="FILE",
        help="of GLUE: index and prediction, as it is submitted",
    )
    parser.add_argument("--data_dir", type=Path, metavar="DIR", help="with the dev file, as GLUE names it")
    parser.add_argument("--dev_file", type=Path, metavar="FILE", help="the dev file itself, such as dev_mismatched.tsv")


def run(arguments: argparse.Namespace) -> None:
    """Print the metrics as a JSON object."""
    from bert_horovod.finetuning.scoring import SCORERS, Request

    request = Request(arguments.predictions, arguments.data_dir, arguments.dev_file)
    print(json.dumps(SCORERS[arguments.task](request)))
