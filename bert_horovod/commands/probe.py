"""Score each checkpoint of a run on a task: fine-tune a copy of it; the same command resumes.

A fine-tuning takes 3 epochs, or 300 steps if that is less. The scores on the dev set are printed as a table and written
to scores.json.

One process:     bert-horovod probe RUN --task sst2 --data_dir GLUE/SST-2
Files of yours:  bert-horovod probe RUN --task multilabel --train_file T.csv --dev_fraction 0.1 --label_column labels
Several hosts:   bert-horovod launch -np 8 -hostfile hosts -- probe RUN --task sst2 --data_dir GLUE/SST-2

The scores show when more pre-training stops helping the task. execution.probe does the same while a run trains.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.commands.shared.ranks import train_as_rank
from bert_horovod.commands.shared.table_flags import add_columns, for_kinds, for_tasks
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.kinds import KINDS, kind_of_task

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.collectives.world import World
    from bert_horovod.training.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="output_dir of a pre-training")
    kinds = [kind for kind in KINDS if kind.stops_early]  # a probe is compared by the first score
    tasks = [task for kind in kinds for task in kind.tasks]
    parser.add_argument("--task", required=True, choices=tasks, help="; ".join(kind.help for kind in kinds))
    data_dir = parser.add_argument(
        "--data_dir", type=Path, metavar="DIR", help="directory of the task of GLUE or of ner"
    )
    for_kinds(data_dir, lambda kind, task: kind.flags(task) if task in tasks else ())
    for split in ("train", "dev"):
        file = parser.add_argument(
            f"--{split}_file", type=Path, metavar="FILE", help=f"your own {split} file: TSV, CSV or JSON Lines"
        )
        for_tasks(file, *(task for task in tasks if "data_dir" not in kind_of_task(task).flags(task)))
    add_columns(parser)
    parser.add_argument(
        "--output_dir", type=Path, metavar="DIR", help="for fine-tunings and scores.json (default: RUN/probe/TASK)"
    )
    add_overrides(parser)
    parser.set_defaults(max_steps=None, stop_before=None, stop_when=None, tuned=None)


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, fine-tune a copy of each checkpoint, and print the scores."""
    arguments.output_dir = arguments.output_dir or arguments.run_dir / "probe" / arguments.task
    return train_as_rank(arguments, _jobs, partial(_probe_all, arguments), _look)


def _look(arguments: argparse.Namespace) -> None:
    """Find mistakes in paths and columns; what is read is kept as `arguments.kind`."""
    from bert_horovod.finetuning.probing import probe_data

    directory = arguments.run_dir / "checkpoints"
    if not any(directory.glob("step-*")):
        raise UserError(
            f"{directory} has no checkpoint; expected the output_dir of a pre-training (which keeps more than the "
            "newest with execution.keep_checkpoints)"
        )
    if arguments.data_dir is None and "data_dir" in kind_of_task(arguments.task).flags(arguments.task):
        raise UserError(f"--task {arguments.task}: expected --data_dir, the task's directory, as for finetune")
    dev = (arguments.dev_file,) if arguments.dev_file else ()
    files = Files(arguments.data_dir, arguments.train_file, dev)
    arguments.kind = probe_data(arguments.task, files, vars(arguments))


def _jobs(arguments: argparse.Namespace, launched: "Launch", **options) -> "list[Job]":
    from bert_horovod.finetuning.initialisation import Finetuning
    from bert_horovod.finetuning.probing import probe_job
    from bert_horovod.runs.checkpoint import paths
    from bert_horovod.runs.opening import find_checkpoint

    checkpoints = paths(arguments.run_dir)
    jobs: list[Job] = []
    for checkpoint in checkpoints:
        finetuning = Finetuning(arguments.kind, find_checkpoint(checkpoint))
        if not jobs:
            finetuning.use_devices(launched.local_rank, launched.local_size, arguments.overrides)
        output_dir = arguments.output_dir / checkpoint.name
        jobs.append(probe_job(finetuning, output_dir, arguments.overrides, launched.size, **options))
    return jobs


def _probe_all(arguments: argparse.Namespace, jobs: "list[Job]", world: "World") -> None:
    from bert_horovod.finetuning.probing import probe_all
    from bert_horovod.reporting.tables import lines
    from bert_horovod.storage.writing import write_atomically

    probed = probe_all(jobs, world)
    if world.rank or probed is None:
        return
    names = list(probed[0][1])
    write_atomically(arguments.output_dir / "scores.json", json.dumps(dict(probed), indent=1) + "\n")
    table = [["checkpoint", *(name.replace("_", " ") for name in names)]]
    table += [[checkpoint, *(f"{scores[name]:.4f}" for name in names)] for checkpoint, scores in probed]
    print(f"\n{lines(table)}\n{arguments.output_dir / 'scores.json'}")
