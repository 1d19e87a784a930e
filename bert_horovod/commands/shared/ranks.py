"""Code of all commands that train: their flags; a process joins the other ranks, trains, and reports errors."""

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.collectives.launched import ATTEMPT, started_by
from bert_horovod.commands.shared.flags import add_overrides, add_tuned, require_least
from bert_horovod.corpus.reading.finding import writable
from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.recipe_files.loading import tuned_overrides
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.lasting_log import outlive_log
from bert_horovod.runtime.quiet import import_tensorflow
from bert_horovod.runtime.stopping import LEAVING, STOP

if TYPE_CHECKING:
    from bert_horovod.collectives.launched import Launch
    from bert_horovod.collectives.world import World
    from bert_horovod.training.job import Job

_PATIENCE_S = 10  # a rank waits so long before its error message, so that another rank's message comes first


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare --output_dir, --max_steps, --stop_before, --stop_when, --tuned and --set."""
    parser.add_argument(
        "--output_dir",
        required=True,
        type=Path,
        metavar="DIR",
        help="directory for checkpoints and metrics; a run that it holds is resumed",
    )
    parser.add_argument(
        "--max_steps", type=int, metavar="N", help="stop after step N of the whole run; the schedule stays the recipe's"
    )
    parser.add_argument(
        "--stop_before",
        metavar="TIME",
        help="in a SLURM job, save and stop so long before its time limit, as in 90s, 10m or 1h",
    )
    parser.add_argument(
        "--stop_when",
        metavar="COMMAND",
        help="save and stop once this shell command ends with 0 on a host, where it is run every 5 s: a cloud's notice "
        "that the machine will be taken away",
    )
    add_tuned(parser)
    add_overrides(parser)


def train_as_rank(
    arguments: argparse.Namespace,
    make_jobs: Callable[..., "Sequence[Job]"],
    train_jobs: Callable[["Sequence[Job]", "World"], None] | None = None,
    look: Callable[[argparse.Namespace], None] = lambda _: None,
) -> int:
    """Check everything, join the other ranks, train; raises RunError if other ranks were lost.

    `look` finds mistakes in paths and columns before TensorFlow is imported, which takes seconds. `make_jobs`, called
    with arguments, launched and fields of Job, finds a user's mistakes, because no rank waits for another yet; all jobs
    have the same [execution]. `train_jobs` trains the jobs; None: training.loop.train trains the only
    one.
    """
    outlive_log()
    from bert_horovod.collectives.launched import launch

    launched = launch()
    with one_message():
        _look(arguments, launched.rank)
        look(arguments)
    import_tensorflow()
    as_rank(launched, lambda: _train(arguments, launched, make_jobs, train_jobs))
    return LEAVING if STOP.came and ATTEMPT in os.environ else 0


def as_rank(launched: "Launch", work: Callable[[], None]) -> None:
    """Do this rank's work, so that an error that all ranks have is told once; RunError if other ranks were lost."""
    me = f"rank {launched.rank} on {socket.gethostname()}"
    try:
        with one_message():
            work()
    except ReportedError:  # else the next line would import TensorFlow
        raise
    except tf.errors.OpError as error:
        if "Horovod" not in str(error):
            raise
        # Another rank has ended and reports the reason itself; that ends this process too, unless it was stopped or its
        # host is gone.
        from bert_horovod.training.hooks.watchdog import silent_ranks

        if silent := silent_ranks(launched.rank, launched.size, _PATIENCE_S):
            raise RunError(f"{'; '.join(silent)}. So {me} has lost it; the same command resumes") from error
        raise RunError(f"{me} has lost other ranks: {error.message}") from error


@contextlib.contextmanager
def one_message() -> Iterator[None]:
    """Let rank 0 report an error that all ranks have: then the job ends; an error of this host alone is reported."""
    try:
        yield
    except ReportedError as error:
        if (rank := started_by().rank) == 0:
            raise
        time.sleep(_PATIENCE_S)
        raise type(error)(f"rank {rank} on {socket.gethostname()}: {error}") from error


def _look(arguments: argparse.Namespace, rank: int) -> None:
    """Check the flags of `add_run`, and add the settings of --tuned to `overrides`."""
    from bert_horovod.runs.directory import refuse_other_things

    require_least("--max_steps", arguments.max_steps)
    output_dir = arguments.output_dir
    if writable(output_dir or "") != str(output_dir or ""):
        raise UserError(
            f"--output_dir {writable(output_dir)} has a name that is not UTF-8, to which TensorFlow cannot write; give "
            "another name"
        )
    if output_dir and output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output_dir {output_dir} is a file; give a directory")
    if output_dir and rank == 0 and any(vars(arguments).get(name) for name in ("seeds", "learning_rates", "run_dir")):
        if (output_dir / "run.json").exists():  # several runs have directories inside
            raise UserError(f"--output_dir {output_dir} is that of one run, and this makes several; give another")
    elif output_dir and rank == 0:
        refuse_other_things(output_dir)  # claim does it again
    arguments.overrides = [*tuned_overrides(arguments.tuned), *arguments.overrides]


def _train(
    arguments: argparse.Namespace,
    launched: "Launch",
    make_jobs: Callable[..., "Sequence[Job]"],
    train_jobs: Callable[["Sequence[Job]", "World"], None] | None,
) -> None:
    from bert_horovod.cluster.launching.deadline import stop_time, watch
    from bert_horovod.training.entering import enter
    from bert_horovod.training.loop import train

    if arguments.stop_when and launched.local_rank == 0:
        watch(arguments.stop_when, lambda: STOP.notice("--stop_when: this host will be taken away"))
    stop_at = stop_time(arguments.stop_before) if arguments.stop_before and launched.rank == 0 else None
    jobs = make_jobs(arguments, launched, max_steps=arguments.max_steps, stop_at=stop_at)
    enter(jobs, launched, arguments.words, train_jobs or (lambda jobs, world: train(jobs[0], world)))
