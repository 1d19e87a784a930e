"""Fine-tune a checkpoint on a task of GLUE or on SQuAD; started again on its output directory, it resumes.

One process:     bert-horovod finetune --task sst2 --data_dir GLUE/SST-2 --checkpoint C --output_dir O
                 bert-horovod finetune --task squad --data_dir SQUAD --checkpoint C --output_dir O
Several hosts:   bert-horovod launch -np 8 -hostfile hosts -- finetune --task sst2 ...
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.ranks import add_run, train_as_rank
from bert_horovod.errors import UserError

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.training.job import Job

SQUAD = "squad"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--task", required=True, choices=("sst2", SQUAD), help="the task of GLUE, or squad")
    parser.add_argument(
        "--data_dir",
        type=Path,
        metavar="DIR",
        help="GLUE's directory of it: train.tsv, dev.tsv or .gz; or SQuAD's: train-v1.1.json, dev-v1.1.json, or v2.0's",
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="DIR",
        help="Hugging Face BERT directory, or a run's output_dir (its newest checkpoint)",
    )
    parser.add_argument("--epochs", type=float, metavar="N", help="over the train examples (default: 3, for squad 2)")
    add_run(parser)
    squad = parser.add_argument_group("only for --task squad")
    for split in ("train", "dev"):
        squad.add_argument(f"--{split}_file", type=Path, metavar="FILE", help=f"in place of --data_dir's {split} file")
    squad.add_argument(
        "--doc_stride",
        type=int,
        metavar="N",
        help="tokens from one window of a long context to the next (default: 128)",
    )
    squad.add_argument(
        "--null_score_threshold",
        type=float,
        metavar="X",
        help="2.0: no answer where the null odds, a difference of logits, are above (default: 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, train, and print the dev scores."""
    return train_as_rank(arguments, _squad_job if arguments.task == SQUAD else _glue_job)


def _glue_job(arguments: argparse.Namespace, launched: "Launch", **options) -> "Job":
    from bert_horovod.finetuning.classifier import classification_job

    for name in ("train_file", "dev_file", "doc_stride", "null_score_threshold"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} is for --task squad, not for --task {arguments.task}")
    if arguments.data_dir is None:
        raise UserError("expected --data_dir, GLUE's directory of the task")
    return classification_job(
        arguments.task,
        arguments.data_dir,
        arguments.checkpoint,
        arguments.output_dir,
        3.0 if arguments.epochs is None else arguments.epochs,
        arguments.overrides,
        launched.size,
        **options,
    )


def _squad_job(arguments: argparse.Namespace, launched: "Launch", **options) -> "Job":
    from bert_horovod.batches.span_windows import STRIDE
    from bert_horovod.finetuning.squad import EPOCHS, squad_job

    return squad_job(
        arguments.checkpoint,
        arguments.output_dir,
        arguments.data_dir,
        arguments.train_file,
        arguments.dev_file,
        EPOCHS if arguments.epochs is None else arguments.epochs,
        STRIDE if arguments.doc_stride is None else arguments.doc_stride,
        arguments.null_score_threshold or 0.0,
        arguments.overrides,
        launched.size,
        **options,
    )
