"""Fine-tune a checkpoint on a task; started again on its output directory, it resumes.

GLUE:            bert-horovod finetune --task sst2 --data_dir GLUE/SST-2 --checkpoint C --output_dir O
Files of yours:  bert-horovod finetune --task classification --train_file T.csv --dev_file D.csv --text_columns text
                 --label_column label --checkpoint C --output_dir O
SQuAD:           bert-horovod finetune --task squad --data_dir SQUAD --checkpoint C --output_dir O
Entities:        bert-horovod finetune --task ner --train_file T.conll --dev_file D.conll --checkpoint C --output_dir O
Several hosts:   bert-horovod launch -np 8 -hostfile hosts -- finetune --task sst2 ...
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import require_least
from bert_horovod.commands.shared.opened_flags import add_checkpoint
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.ranks import add_run, train_as_rank
from bert_horovod.commands.shared.table_flags import add_columns, for_tasks
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.kinds import KINDS, kind_of_task, tasks
from bert_horovod.recipe_files.loading import overridden_keys
from bert_horovod.wording import counted

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.collectives.world import World
    from bert_horovod.training.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--task",
        required=True,
        choices=tasks(),
        metavar="TASK",
        help="; ".join(kind.help for kind in KINDS),
    )
    data_dir = parser.add_argument(
        "--data_dir",
        type=Path,
        metavar="DIR",
        help="GLUE's directory of the task: train.tsv, dev.tsv, ...; SQuAD's: train-v1.1.json, dev-v1.1.json; for ner "
        "one with files called train, dev (devel, valid) and test; or .gz",
    )
    for split in ("train", "dev", "test"):
        parser.add_argument(
            f"--{split}_file",
            type=Path,
            metavar="FILE",
            action="store" if split == "train" else "append",
            default=None if split == "train" else [],
            help={
                "train": "instead of data_dir's: TSV, CSV (.csv) or JSON Lines (.jsonl), plain or .gz; "
                "for ner CoNLL (a word and its tag a line) or JSON Lines (lists tokens and tags)",
                "dev": "likewise; for mnli twice: matched, mismatched",
                "test": "likewise, without labels: predictions for it are written at the end; for mnli three times: "
                "matched, mismatched, AX",
            }[split],
        )
    add_columns(parser)
    add_checkpoint(parser)
    epochs = parser.add_argument(
        "--epochs", type=float, metavar="N", help="passes over the examples (default: 3, for squad 2)"
    )
    seeds = parser.add_argument(
        "--seeds",
        metavar="N",
        help="several runs, each in output_dir/seed-...: N seeds from 0 on, or a list, as in 1,5,7",
    )
    rates = parser.add_argument(
        "--learning_rates", metavar="A,B", help="several runs: each of these rates with each seed; scores.json sums up"
    )
    undecided = " or ".join(task for kind in KINDS if not kind.stops_early for task in kind.tasks)
    early_stop = parser.add_argument(
        "--early_stop",
        type=int,
        metavar="N",
        help=f"end after N evaluations (epochs) without a better first score; not for {undecided}",
    )
    add_run(parser)
    read_with(data_dir, "for the train, dev and test files that no other flag names", _lacks_files)
    read_with(early_stop, f"with another --task than {undecided}", lambda it: kind_of_task(it.task).stops_early)
    for action, key in ((epochs, "phase.0.steps"), (seeds, "data.seed"), (rates, "phase.0.learning_rate")):
        read_with(action, f"without --set {key}", partial(_is_not_set, key))
    for kind in KINDS:
        group = parser.add_argument_group(f"for --task {' or '.join(kind.tasks)} only")
        kind.add_flags(group)
        for action in group._group_actions:
            for_tasks(action, *kind.tasks)


def _lacks_files(arguments: argparse.Namespace) -> bool:
    kind = kind_of_task(arguments.task)
    tests = arguments.test_file or not kind.has_tests
    finds = "data_dir" in kind.flags(arguments.task)  # else `read` says so
    return not finds or not (arguments.train_file and arguments.dev_file and tests)


def _is_not_set(key: str, arguments: argparse.Namespace) -> bool:
    return key not in overridden_keys(arguments.overrides)


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, train, and print the dev scores."""
    if arguments.seeds is None and arguments.learning_rates is None:
        return train_as_rank(arguments, _jobs, look=_look)
    return train_as_rank(arguments, _jobs, partial(_train_all, arguments), _look)


def _look(arguments: argparse.Namespace) -> None:
    """Find mistakes in flags, paths and columns; what is read is kept as `arguments.kind`."""
    require_least("--early_stop", arguments.early_stop)
    files = Files(arguments.data_dir, arguments.train_file, tuple(arguments.dev_file), tuple(arguments.test_file))
    arguments.kind = kind_of_task(arguments.task).read(arguments.task, files, vars(arguments))


def _jobs(arguments: argparse.Namespace, launched: "Launch", **options) -> "list[Job]":
    from bert_horovod.finetuning.initialisation import Finetuning
    from bert_horovod.finetuning.sweep import variants

    made_of = variants(arguments.seeds, arguments.learning_rates)
    finetuning = Finetuning(arguments.kind, arguments.checkpoint)
    finetuning.use_devices(launched.local_rank, launched.local_size, arguments.overrides)
    settings: list[tuple[Path, list[str]]] = [(arguments.output_dir, [])]
    if made_of:
        settings = [(arguments.output_dir / variant.name, variant.overrides) for variant in made_of]
        if launched.rank == 0:
            print(f"{counted(len(settings), 'run')}, all checked before the first is trained", flush=True)
    options |= {"world_size": launched.size, "early_stop": arguments.early_stop}
    jobs = [
        finetuning.job(output_dir, arguments.epochs, [*arguments.overrides, *more], **options)
        for output_dir, more in settings
    ]
    if launched.rank == 0:  # mistakes in it are told before the ranks join
        finetuning.initial.load(jobs[0].recipe, jobs[0].task, jobs[0].dataset)
    steps, every = jobs[0].recipe.total_steps, jobs[0].recipe.execution.evaluate_steps
    if arguments.early_stop is not None and not 0 < every < steps:
        raise UserError(
            f"--early_stop {arguments.early_stop}: a run of {steps} steps with execution.evaluate_steps = {every} has "
            "no evaluation before its end; expected fewer steps between evaluations, or more epochs, or leave it out"
        )
    return jobs


def _train_all(arguments: argparse.Namespace, jobs: "Sequence[Job]", world: "World") -> None:
    """Train the runs of several seeds and learning rates, and print a table that compares them."""
    from bert_horovod.finetuning.sweep import sweep_cells, sweep_summary, train_all, variants
    from bert_horovod.reporting.tables import lines
    from bert_horovod.storage.writing import write_atomically

    runs = train_all(jobs, variants(arguments.seeds, arguments.learning_rates), world, print)
    if world.rank or runs is None:
        return
    compared = sweep_summary(arguments.task, runs)
    write_atomically(arguments.output_dir / "scores.json", json.dumps(compared, indent=1) + "\n")
    said = f"\n{lines(sweep_cells(compared))}\n+-: standard deviation of the runs"
    if best := compared["best"]:
        decides = compared["decides"].replace("_", " ")
        said += f"; {decides} decides\nbest: {best['output_dir']}, {decides} {best['scores'][compared['decides']]:.4f}"
    print(said)
