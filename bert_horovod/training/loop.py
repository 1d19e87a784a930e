"""The training loop: phases of optimizer steps, from a dataset to a checkpoint."""

import contextlib
from collections.abc import Callable

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.ahead import Ahead
from bert_horovod.training.entering import begin_run, enter_phase
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.checkpointing import CheckpointHook
from bert_horovod.training.hooks.consistency import ConsistencyHook
from bert_horovod.training.hooks.divergence import JUMP_STEPS, Diverged, DivergenceHook, roll_back
from bert_horovod.training.hooks.evaluation import EvaluationHook, ExpectedLossHook
from bert_horovod.training.hooks.metrics import MetricsHook
from bert_horovod.training.hooks.replay import ReplayHook
from bert_horovod.training.hooks.signs_of_life import SignHook
from bert_horovod.training.hooks.watchdog import WatchdogHook
from bert_horovod.training.inputs import StepBatch, step_batches
from bert_horovod.training.job import Job
from bert_horovod.training.run import Run

# In the order in which the loop calls them: hooks that may stop the run come before those that write about it, and the
# hook that saves checkpoints comes last.
HOOKS: tuple[Callable[[Run], Hook], ...] = (
    SignHook,
    WatchdogHook,
    DivergenceHook,
    MetricsHook,
    ExpectedLossHook,
    EvaluationHook,
    ConsistencyHook,
    ReplayHook,
    CheckpointHook,
)


def train(job: Job, world: World) -> None:
    """Train until the recipe's end, `max_steps`, or a request to stop; resumes the run in output_dir, if any."""
    with contextlib.closing(begin_run(job, world, HOOKS)) as run:
        try:
            _train_to_end(run)
        except BaseException as error:
            run.failure = error
            raise
    world.barrier()  # no rank leaves while rank 0 still writes


def _train_to_end(run: Run) -> None:
    while True:
        try:
            _train_phases(run)
            break
        except Diverged as error:
            roll_back(run, error)
    # Reversed: checkpoints finish first, then the watchdog ends, because rank 0 may wait long for disk space.
    for hook in reversed(run.hooks):
        hook.finish()
    run.summarise()


def _train_phases(run: Run) -> None:
    begin = 0
    for number, phase in enumerate(run.recipe.phase):
        if run.state.progress.step < min(begin + phase.steps, run.last_step):
            enter_phase(run, number, begin)
            if not _train_phase(run):
                return
        begin += phase.steps


def _train_phase(run: Run) -> bool:
    """Train the rest of the open phase; False if the run was asked to stop."""
    ahead = Ahead(run)
    with contextlib.closing(step_batches(run)) as batches:
        for number in range(run.state.progress.step + 1, run.phase.end + 1):
            run.doing("reading rows", ahead.more_s)
            batch, waited_s = next(batches)
            run.doing("agreeing on counts", ahead.more_s)
            counts, stop = _agree(run, batch, number - 1)
            if stop:
                ahead.settle()
                if _stopped(run):
                    return False
            ahead.start(number, batch, counts, waited_s)
            if ahead.must_settle():
                ahead.settle()
    return True


def _stopped(run: Run) -> bool:
    """Save and end, as asked to, unless a loss that jumped must first show whether it comes back."""
    if jumped := run.state.progress.jumped_in_a_row:
        run.say(f"asked to stop: at most {JUMP_STEPS - jumped} more steps first show whether the loss comes back")
        return False
    for hook in run.hooks:
        hook.stopping()
    run.say(run.ended or f"asked to stop: saved at step {run.state.progress.step}; the same command resumes")
    return True


def _agree(run: Run, batch: StepBatch, done: int) -> tuple[dict[str, float], bool]:
    """The next step's counts over all ranks, and whether any rank was asked to stop; takes one small all-reduce.

    `done`: steps before it.
    """
    own_counts = [*batch.counts.values(), float(run.must_stop())]
    with tf.device("/CPU:0"):  # a GPU would do it only after the step before
        *counts, stop = run.world.all_reduce(tf.constant(own_counts, tf.float64), "counts").numpy().tolist()
    # If the ranks' states differ after this step, none may save: the request waits for a step after which they agree.
    stops = bool(stop) and (run.exchange is None or run.exchange.ranks_equal_after(done))
    # A count can be 0 in a small global batch. It becomes 1, so that the loss is 0 and not 0 / 0.
    return dict(zip(run.task.counts, np.maximum(counts, 1).tolist(), strict=True)), stops
