"""The start of a run: the stages between a command, which only makes jobs, and the first optimizer step.

claim the directories   rank 0: before anything is written, and before others wait for a rank that is refused, or that
                        waits until an earlier run's ranks have ended
announce                if the ranks cannot join, because recipes ask for other groups of ranks, this alone tells why
join the ranks          from here on a rank that ends ends them all; then each takes its device
agree                   before all else: ranks that differ would wait for each other in collectives that do not match
bring what is newest    rank 0: the recipe is now known to be that of all ranks; and the next stage loads the newest
share the locks         the directories are locked until the last rank ends, not only rank 0
open the state          the progress in it says which phase, and which rows of it, come next
open the rows           once a phase; the state grows, if the phase has more layers, and is compared over ranks
build the step          once a phase, with its first rows: by them buckets are planned, and programs compiled

`enter` is the list. What it trains begins with `open_state`, and each phase with `enter_phase`; the loop builds the
step (training/building.py).
"""

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bert_horovod.batches.source import open_source_once
from bert_horovod.collectives.launched import Launch
from bert_horovod.collectives.starting import connect
from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.costs.derived import derive
from bert_horovod.errors import UserError
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.runs.directory import LOCK_PATIENCE_S, RunRecord, claim, give_up, share
from bert_horovod.runs.mirror import bring_newest
from bert_horovod.runs.reference_curves import text_key_of
from bert_horovod.runs.sessions import PROCESSOR, begin_session
from bert_horovod.runs.status_files import read_sign, record_command
from bert_horovod.runs.trackers import require_trackers
from bert_horovod.runtime.children import set_up, untested_versions
from bert_horovod.runtime.devices import use_devices
from bert_horovod.training.agreement import (
    announce,
    device_kind,
    require_agreement,
    require_same_data,
    require_same_state,
    why_not_joined,
)
from bert_horovod.training.job import Job
from bert_horovod.training.opening_state import first_state, grown_state
from bert_horovod.training.run import FIRST_STEP_S, OpenPhase, Run

_INDEXED_PER_S = 1e6  # tokens of a dataset that are indexed per second with a slow disk and processor


def enter(
    jobs: Sequence[Job], launched: Launch, words: list[str], train_jobs: Callable[[Sequence[Job], World], None]
) -> None:
    """Start the jobs on this rank, train them by `train_jobs`, and let the ranks go; all have the same [execution].

    `words`: of the command. Raises ReportedError.
    """
    locks = claim_directories(jobs, launched, words)
    announce(jobs, launched)
    world = join_ranks(jobs, launched)
    with _giving_up(jobs, world):
        require_agreement(jobs, world)
        bring_newest_checkpoint(jobs, world)
    locks = [share(job.output_dir, lock, world) for job, lock in zip(jobs, locks, strict=True)]
    train_jobs(jobs, world)  # training.loop.train: open_state; for each phase enter_phase, and build_phase_step
    world.shutdown()
    for lock in locks:
        if lock is not None:
            os.close(lock)


def claim_directories(jobs: Sequence[Job], launched: Launch, words: list[str]) -> list[int | None]:
    """Lock the jobs' directories for them, on rank 0, which has their locks' descriptors; raises ReportedError."""
    if launched.rank:
        return [None] * len(jobs)
    execution = jobs[0].recipe.execution
    require_trackers(execution.trackers)
    if execution.mirror and len(jobs) > 1:
        raise UserError(f"execution.mirror = {execution.mirror}: {len(jobs)} runs cannot share it; leave it out")
    if packages := untested_versions():
        print(
            f"bert-horovod: warning: not tested: {'; '.join(packages)}: {set_up()} installs what was tested",
            file=sys.stderr,
        )
    # A rank of an earlier attempt, on a host that is cut off, ends by its watchdog after stall_s: wait so long.
    patience_s = execution.stall_s + 30 if launched.ranks_may_live else LOCK_PATIENCE_S
    records = [(job.start, text_key_of(job.recipe, job.dataset)) for job in jobs]
    locks: list[int | None] = [
        claim(job.output_dir, job.recipe, job.dataset.hash, patience_s, *record)
        for job, record in zip(jobs, records, strict=True)
    ]
    for job in jobs:
        record_command(job.output_dir, words, launched.launcher, launched.size)
    return locks


def join_ranks(jobs: Sequence[Job], launched: Launch) -> World:
    """Join the other ranks, and take this rank's device; raises UserError."""
    recipe = jobs[0].recipe
    try:
        world = connect(launched, recipe)
    except ValueError as error:
        # Exit before Horovod's own exit handler, because that waits for the ranks which were just refused.
        atexit.register(os._exit, UserError.exit_code)
        raise why_not_joined(launched) from error
    use_devices(world.local_rank, world.local_size, recipe.execution.threads)
    return world


@contextlib.contextmanager
def _giving_up(jobs: Sequence[Job], world: World) -> Iterator[None]:
    """A mistake that is found in here leaves no trace of runs that have not begun."""
    try:
        yield
    except UserError:
        for job in jobs if world.rank == 0 else ():
            give_up(job.output_dir)
        raise


def bring_newest_checkpoint(jobs: Sequence[Job], world: World) -> None:
    """Fetch what execution.mirror has and the directory has not, on rank 0; raises ReportedError."""
    job = jobs[0]  # the only one, if there is a mirror
    if world.rank == 0 and (mirror := job.recipe.execution.mirror):
        bring_newest(job.output_dir, mirror, job.recipe, RunRecord(job.dataset.hash, job.start))


def begin_run(job: Job, world: World, hooks: Iterable[Callable[[Run], Any]]) -> Run:
    """A job's run, with its state; all ranks call it together. `hooks`: see Run."""
    began, earlier = time.time(), read_sign(job.output_dir)  # before a hook writes its own
    run = Run(job, world, hooks)
    try:
        require_same_data(job.dataset, world)
        here = [socket.gethostname(), device_kind() or PROCESSOR]
        everyone = from_all_ranks([here], world, "hosts and devices")
        run.hosts = [host for host, _ in everyone]
        if world.rank == 0:
            begin_session(job.output_dir, began, everyone, earlier)
        open_state(run)
        run.begin()
    except BaseException as error:
        run.failure = error
        run.close()
        raise
    return run


def open_state(run: Run) -> None:
    """Load the newest checkpoint, or make the state of a new run; all ranks call it together."""
    run.doing("loading the state", FIRST_STEP_S)
    run.state, run.resumed_from = first_state(run.job, run.world)
    if before := run.state.progress.phases_before:
        run.job = replace(run.job, dataset=replace(run.job.dataset, phases_before=before))


def enter_phase(run: Run, number: int, begin: int) -> None:
    """Open a phase, which begins after step `begin`: its rows, and its state; all ranks call it together."""
    settings, job, world = run.recipe.phase[number], run.job, run.world
    run.doing("opening the rows", FIRST_STEP_S + job.dataset.tokens / _INDEXED_PER_S)
    sources = [open_source_once(job.dataset, number, split, world) for split in ("train", "held_out")]
    run.phase = OpenPhase(
        number,
        settings,
        run.recipe.in_phase(settings),
        begin,
        min(begin + settings.steps, run.last_step),
        *sources,
        derive(run.recipe, settings, world.size).micro_batches,
        run.task,
    )
    if grown := grown_state(run.state, run.exchange, run.task, run.recipe, number):
        run.state, about_growth = grown
        run.exchange = None  # it holds the variables of the phase before
        run.say(about_growth)
    require_same_state(run.state, world)
    for hook in run.hooks:
        hook.phase()
    compiles = "tracing" if compute_policy(run.recipe).xla == "off" else "compiling with XLA"
    run.say(
        f"phase {number}: sequence length {settings.sequence_length}, {sources[0].count:,} rows an epoch; "
        f"{compiles} for the first step, which takes a while"
    )
