"""Pre-train BERT on a token store; started again on its output directory, it resumes.

One process:     bert-horovod pretrain --recipe R --data_dir D --output_dir O
Several hosts:   bert-horovod launch -np 32 -hostfile hosts -- pretrain --recipe R --data_dir D --output_dir O
To stop:         touch O/stop      (every rank saves at the same step)
"""

import argparse
import contextlib
import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import CHECKPOINT, RECIPE, add_data_dirs
from bert_horovod.commands.shared.opened_flags import open_named
from bert_horovod.commands.shared.parser import opens, takes_urls
from bert_horovod.commands.shared.ranks import add_run, train_as_rank
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe_files.loading import load_recipe

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.corpus.store import Store
    from bert_horovod.runs.opening import OpenCheckpoint
    from bert_horovod.training.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, metavar="FILE", help=RECIPE)
    add_data_dirs(parser)
    either = parser.add_mutually_exclusive_group()
    start = either.add_argument(
        "--init_checkpoint",
        type=Path,
        metavar="PATH",
        help=f"to start from, with its [model] where the recipe says nothing else: {CHECKPOINT}",
    )
    behind = either.add_argument(
        "--continue_from",
        type=Path,
        metavar="PATH",
        help="to begin a new run behind a run's checkpoint, with its optimizer state and counters too, and with "
        "another recipe, stores or weights",
    )
    for action in (start, behind):
        takes_urls(action)
        opens(action, partial(_open_start, action.option_strings[0]))
    parser.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices go if the token store is read-only"
    )
    parser.add_argument(
        "--probe_dir",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="directory of the task that execution.probe names; for pairs their files, or directories of them",
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, train; raises RunError if other ranks were lost."""
    return train_as_rank(arguments, lambda *words, **options: [_job(*words, **options)], look=_look)


def _look(arguments: argparse.Namespace) -> None:
    """Find mistakes in paths."""
    from bert_horovod.batches.layout import check_vocabulary
    from bert_horovod.batches.text.mixture import check_mixtures
    from bert_horovod.batches.words import read_priority_words
    from bert_horovod.corpus.stores import open_stores

    recipe = _recipe(arguments)
    with contextlib.suppress(DamagedData):  # told later, with all damaged shards
        stores = open_stores(arguments.data_dir)
        check_mixtures(recipe, stores)
        store = next(iter(stores.values()))
        check_vocabulary(recipe, store, padded=_model(arguments) is not None)
        read_priority_words(recipe.objective.priority_words, store.vocabulary, store.tokenizer_settings)
        _probes(recipe, arguments.probe_dir, store)


def _job(arguments: argparse.Namespace, launched: "Launch", **options) -> "Job":
    from bert_horovod.corpus.stores import open_stores
    from bert_horovod.training.hooks.epochs import EpochHook
    from bert_horovod.training.initial import Initial
    from bert_horovod.training.job import check_size, pretraining_job

    recipe, start = _recipe(arguments), _start(arguments)
    stores = open_stores(arguments.data_dir)
    store = next(iter(stores.values()))
    job = pretraining_job(
        recipe,
        stores,
        arguments.output_dir,
        arguments.index_dir,
        hooks=(EpochHook, *_probes(recipe, arguments.probe_dir, store)),
        **options,
    )
    check_size(recipe, job.task, launched.size)
    if start and launched.rank == 0:  # rank 0 sends its parameters to the others

        def load(checkpoint: "OpenCheckpoint") -> Initial:
            initial = Initial(checkpoint)
            initial.load(recipe, job.task, job.dataset)
            return initial

        job = replace(job, initial=start.whole(load))
    return job


def _open_start(flag: str, arguments: argparse.Namespace, path: Path) -> "OpenCheckpoint | None":
    """The checkpoint; None: the run in --output_dir began with it, and needs it no longer."""
    from bert_horovod.runs.directory import began_with

    return None if began_with(arguments.output_dir, flag, path) else open_named(path, flag)


def _start(arguments: argparse.Namespace) -> "OpenCheckpoint | None":
    return arguments.init_checkpoint or arguments.continue_from


def _model(arguments: argparse.Namespace) -> Model | None:
    """The model of the checkpoint to start from, or that the run in --output_dir was started from; None: of neither."""
    from bert_horovod.runs.directory import started_model

    start = _start(arguments)
    return start.reader.model if start else started_model(arguments.output_dir)


def _recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe, with _model in place of what it leaves out of [model]."""
    return load_recipe(arguments.recipe, arguments.overrides, _model(arguments))


def _probes(recipe: Recipe, inputs: list[Path] | None, store: "Store") -> list[Any]:
    """A factory of the hook that probes, if the recipe asks for one, and finds mistakes in its files.

    Its module is found by name, because pre-training must not need fine-tuning or inference.
    """
    probe, given = recipe.execution.probe, " ".join(map(str, inputs)) if inputs else "missing"
    if bool(probe) != bool(inputs):
        raise UserError(
            f"execution.probe = {probe!r} and --probe_dir {given}: expected both, a task and its files, or neither"
        )
    if not inputs:
        return []
    if probe == "pairs":
        return [importlib.import_module("bert_horovod.training.hooks.pair_probe").hook(inputs, recipe.model, store)]
    if len(inputs) > 1:
        raise UserError(f"--probe_dir {given}: expected the one directory of execution.probe = {probe!r}")
    return [importlib.import_module("bert_horovod.finetuning.probing").hook(probe, inputs[0])]
