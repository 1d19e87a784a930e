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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.finetune import NER
from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.commands.shared.ranks import train_as_rank
from bert_horovod.commands.shared.table_flags import OWN, add_columns, for_tasks, own_options
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import GLUE_TASKS

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.collectives.world import World
    from bert_horovod.training.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="output_dir of a pre-training")
    parser.add_argument(
        "--task",
        required=True,
        choices=(*GLUE_TASKS, NER, *OWN),
        help=f"task of GLUE, or {NER}; on files of your own: {', '.join(OWN)}",
    )
    data_dir = parser.add_argument(
        "--data_dir", type=Path, metavar="DIR", help="directory of the task of GLUE or of ner"
    )
    for_tasks(data_dir, *GLUE_TASKS, NER)
    for split in ("train", "dev"):
        file = parser.add_argument(
            f"--{split}_file", type=Path, metavar="FILE", help=f"your own {split} file: TSV, CSV or JSON Lines"
        )
        for_tasks(file, *OWN)
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
    """Find mistakes in paths."""
    from bert_horovod.corpus.reading.tagged_files import TagColumns
    from bert_horovod.finetuning.probing import find_files
    from bert_horovod.finetuning.tag_data import ner_data
    from bert_horovod.finetuning.text_data import Files, own_data

    directory = arguments.run_dir / "checkpoints"
    if not any(directory.glob("step-*")):
        raise UserError(
            f"{directory} has no checkpoint; expected the output_dir of a pre-training (which keeps more than the "
            "newest with execution.keep_checkpoints or keep_every_hours)"
        )
    if arguments.task in OWN:
        files = Files(None, arguments.train_file, (arguments.dev_file,) if arguments.dev_file else ())
        columns = tuple(arguments.text_columns.split(","))
        arguments.data = own_data(arguments.task, files, columns, arguments.label_column, own_options(arguments))
    elif arguments.data_dir is None:
        raise UserError(f"--task {arguments.task}: expected --data_dir, the task's directory, as for finetune")
    elif arguments.task == NER:
        columns_of_tags = TagColumns(arguments.text_columns, arguments.label_column)
        arguments.data = replace(ner_data(Files(arguments.data_dir), columns_of_tags), test=None)
    else:
        find_files(arguments.task, arguments.data_dir)


def _jobs(arguments: argparse.Namespace, launched: "Launch", **options) -> "list[Job]":
    from bert_horovod.finetuning.beginning import open_finetuning
    from bert_horovod.finetuning.probing import probe_data, probe_job
    from bert_horovod.runs.checkpoint import paths

    checkpoints = paths(arguments.run_dir)
    examples = arguments.data if arguments.task in (NER, *OWN) else probe_data(arguments.task, arguments.data_dir)
    jobs: list[Job] = []
    for checkpoint in checkpoints:
        finetuning = open_finetuning(examples, checkpoint)
        if not jobs:
            finetuning.use_devices(launched.local_rank, launched.local_size, arguments.overrides)
        output_dir = arguments.output_dir / checkpoint.name
        jobs.append(probe_job(finetuning, output_dir, arguments.overrides, launched.size, **options))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
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
