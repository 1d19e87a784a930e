"""Fine-tune a checkpoint on a classification task of GLUE; started again on its output directory, it resumes.

One process:     bert-horovod finetune --task sst2 --data_dir GLUE/SST-2 --checkpoint C --output_dir O
Several hosts:   bert-horovod launch -np 8 -hostfile hosts -- finetune --task sst2 ...
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.checkpoint_flag import CHECKPOINT
from bert_horovod.commands.shared.ranks import add_run, train_as_rank

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.training.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--task", required=True, choices=("sst2",), help="the task of GLUE")
    parser.add_argument(
        "--data_dir", required=True, type=Path, metavar="DIR", help="GLUE's directory of it: train.tsv, dev.tsv or .gz"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="PATH",
        help=CHECKPOINT,
    )
    parser.add_argument(
        "--epochs", type=float, default=3.0, metavar="N", help="over the train examples (default: %(default)s)"
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, train, and print the dev accuracy."""
    return train_as_rank(arguments, _job)


def _job(arguments: argparse.Namespace, launched: "Launch", **options) -> "Job":
    from bert_horovod.finetuning.classifier import classification_job

    return classification_job(
        arguments.task,
        arguments.data_dir,
        arguments.checkpoint,
        arguments.output_dir,
        arguments.epochs,
        arguments.overrides,
        launched.size,
        **options,
    )
