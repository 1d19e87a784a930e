"""Pre-train BERT on a token store; started again on its output directory, it resumes.

One process:     bert-horovod pretrain --recipe R --data_dir D --output_dir O
Several hosts:   bert-horovod launch -np 32 -hostfile hosts -- pretrain --recipe R --data_dir D --output_dir O
To stop:         touch O/stop      (every rank saves at the same step)
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.recipe.loading import load_recipe
from bert_horovod.runtime.quiet import import_tensorflow

_PATIENCE_S = 10  # of a rank that leaves the last words to another


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, metavar="FILE", help="recipe in TOML; see run/recipes/")
    parser.add_argument(
        "--data_dir", required=True, type=Path, metavar="DIR", help="token store, made by: bert-horovod prepare"
    )
    parser.add_argument(
        "--output_dir",
        required=True,
        type=Path,
        metavar="DIR",
        help="checkpoints and metrics; resumed if it holds this run",
    )
    parser.add_argument("--init_checkpoint", type=Path, metavar="DIR", help="Hugging Face BERT directory to start from")
    parser.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices go if the token store is read-only"
    )
    parser.add_argument(
        "--max_steps", type=int, metavar="N", help="stop after step N of the whole run; the schedule stays the recipe's"
    )
    parser.add_argument(
        "--stop_before",
        metavar="TIME",
        help="in a job of SLURM, save and stop so long before its time limit, as in 90s, 10m or 1h",
    )
    add_overrides(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check everything, join the other ranks, train; raises RunError if other ranks were lost."""
    import_tensorflow()
    import tensorflow as tf

    from bert_horovod.collectives.launched import launch

    launched = launch()
    me = f"rank {launched.rank} on {socket.gethostname()}"
    try:
        _run(arguments, launched)
    except ReportedError as error:
        if launched.rank == 0:
            raise
        # Rank 0 says what is wrong for all; only a fault of this host alone is left to say after a while.
        time.sleep(_PATIENCE_S)
        raise type(error)(f"{me}: {error}") from error
    except tf.errors.OpError as error:
        if "Horovod" not in str(error):
            raise
        # Another rank has ended, and its own words say why: the job ends by it, unless its host is gone.
        time.sleep(_PATIENCE_S)
        raise RunError(f"{me} has lost other ranks: {error.message}") from error
    return 0


def _run(arguments: argparse.Namespace, launched) -> None:
    from bert_horovod.batches.rows import StoreDataset
    from bert_horovod.cluster.launching.deadline import stop_time
    from bert_horovod.collectives.world import connect
    from bert_horovod.corpus.store import open_store, verify
    from bert_horovod.runs.directory import LOCK_PATIENCE_S, claim, share
    from bert_horovod.runtime.devices import use_devices
    from bert_horovod.tasks.pretraining import Pretraining
    from bert_horovod.training.job import pretraining_job
    from bert_horovod.training.loop import train
    from bert_horovod.training.start import check_recipe, load_initial, untested_versions

    recipe = load_recipe(arguments.recipe, arguments.overrides)
    if arguments.max_steps is not None and arguments.max_steps < 1:
        raise UserError(f"--max_steps {arguments.max_steps}: expected at least 1")
    stop_at = stop_time(arguments.stop_before) if arguments.stop_before and launched.rank == 0 else None
    # One process a host reads its host's copy once: a damaged byte would else be trained on.
    store = (verify if launched.local_rank == 0 else open_store)(arguments.data_dir)
    check_recipe(recipe, store, launched.size)
    if launched.rank == 0:
        for found in untested_versions():
            print(f"bert-horovod: warning: not tested: {found}; run/setup.sh installs what was tested", file=sys.stderr)
        if arguments.init_checkpoint:
            task, dataset = Pretraining(recipe.objective.pairs), StoreDataset(store, recipe)
            load_initial(arguments.init_checkpoint, recipe.model, task, dataset)
    claimed = None
    if launched.rank == 0:
        # A rank that is cut off ends by its watchdog.
        patience_s = recipe.execution.stall_s + 30 if launched.ranks_may_live else LOCK_PATIENCE_S
        claimed = claim(arguments.output_dir, recipe, store.hash, patience_s)
    world = connect(launched, recipe.execution)
    use_devices(world.local_rank, world.local_size, recipe.execution.threads)
    held = share(arguments.output_dir, claimed, world)  # until this process ends
    job = pretraining_job(
        recipe,
        store,
        arguments.output_dir,
        arguments.index_dir,
        init_checkpoint=arguments.init_checkpoint,
        max_steps=arguments.max_steps,
        stop_at=stop_at,
    )
    train(job, world)
    world.shutdown()
    if held is not None:
        os.close(held)
