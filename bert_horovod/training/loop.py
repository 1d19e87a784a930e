"""The training loop: phases of optimizer steps, from a dataset to a checkpoint."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_horovod.collectives.world import World, from_rank_0
from bert_horovod.errors import UserError
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.runs.checkpoint import paths
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.entering import open_rows, open_run, open_state
from bert_horovod.training.gpu_choices import keep_choices, share_choices
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.hooks.checkpointing import CheckpointHook
from bert_horovod.training.hooks.consistency import ConsistencyHook
from bert_horovod.training.hooks.divergence import JUMP_STEPS, Diverged, DivergenceHook, pass_over
from bert_horovod.training.hooks.evaluation import EvaluationHook, ExpectedLossHook
from bert_horovod.training.hooks.metrics import MetricsHook
from bert_horovod.training.hooks.replay import ReplayHook
from bert_horovod.training.hooks.signs_of_life import SignHook
from bert_horovod.training.hooks.timeline import ProfileHook, TimelineHook
from bert_horovod.training.hooks.watchdog import WatchdogHook
from bert_horovod.training.inputs import StepBatch, step_batches, step_inputs
from bert_horovod.training.job import Job
from bert_horovod.training.overlap import planned_step
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StartedStep, StepInputs

# In the order in which the loop calls them: hooks that may stop the run come before those that write about it, and the
# hook that saves checkpoints comes last.
HOOKS: tuple[Callable[[Run], Hook], ...] = (
    SignHook,
    WatchdogHook,
    ProfileHook,
    TimelineHook,
    DivergenceHook,
    MetricsHook,
    ExpectedLossHook,
    EvaluationHook,
    ConsistencyHook,
    ReplayHook,
    CheckpointHook,
)
MOST_ROLLBACKS = 3  # to the same checkpoint


def train(job: Job, world: World) -> None:
    """Train until the recipe's end, `max_steps`, or a request to stop; resumes the run in output_dir, if any."""
    with contextlib.closing(open_run(job, world, HOOKS)) as run:
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
            _roll_back(run, error)
    # Reversed: checkpoints finish first, then the watchdog ends, because rank 0 may wait long for disk space.
    for hook in reversed(run.hooks):
        hook.finish()
    run.summarise()


def _train_phases(run: Run) -> None:
    begin = 0
    for number, phase in enumerate(run.recipe.phase):
        if run.state.progress.step < min(begin + phase.steps, run.last_step):
            open_rows(run, number, begin)
            if not _train_phase(run):
                return
        begin += phase.steps


def _roll_back(run: Run, error: Diverged) -> None:
    """Load the last checkpoint and go on with rows that no step has used yet.

    Raises UserError if numerics.on_divergence says to stop, or the run has gone back to that checkpoint often enough.
    """
    if run.recipe.numerics.on_divergence == "stop":
        run.settle()
        saved = from_rank_0([str(path) for path in paths(run.job.output_dir)[-1:]], run.world, "last checkpoint")
        begin = [f"; --init_checkpoint {path} begins before it" for path in saved if isinstance(run.task, Pretraining)]
        raise UserError(
            f"{error}. The same command would diverge again: give another recipe and another --output_dir"
            + "".join(begin)
        ) from error
    diverged = run.state.progress
    for hook in run.hooks:
        hook.wait()
    run.console.clear()  # a damaged checkpoint is told on standard error
    open_state(run)
    progress = run.state.progress
    step, count = run.rollbacks
    run.rollbacks = (progress.step, count + 1 if step == progress.step else 1)
    if run.rollbacks[1] > MOST_ROLLBACKS:
        raise UserError(
            f"{error}. The run has gone back to step {progress.step} {MOST_ROLLBACKS} times and diverged each time"
        )
    pass_over(progress, diverged, run.recipe.phase)
    run.exchange = None
    for hook in run.hooks:
        hook.rolled_back()
    if run.journal is not None:
        run.journal.incident(
            progress.step,
            f"{error}. Back to step {progress.step}; passing over the rows of the {diverged.step - progress.step} "
            f"steps since (rollback {run.rollbacks[1]} of at most {MOST_ROLLBACKS} from there)",
        )


Shapes = tuple[tuple[int, ...], ...]  # of a micro-batch's arrays


class _Begun(NamedTuple):
    """A step that the device has to do or has done, but whose result the host has not read."""

    number: int  # in the run, from 1
    started: StartedStep
    batch: StepBatch
    inputs: StepInputs
    counts: dict[str, float]
    learning_rate: float
    waited_s: float


def _train_phase(run: Run) -> bool:
    """Train the rest of the open phase; False if the run was asked to stop.

    On a GPU the result of a step is read after the next one is enqueued, so that the GPU never waits for the host: not
    where a hook or the exchange needs the state between them.
    """
    phase, done = run.phase, run.state.progress.step
    step: TrainStep | None = None
    compiled: set[tuple[bool, bool, bool, Shapes]] = set()  # kinds of steps that are compiled
    exchange = run.recipe.exchange
    compiled_after = done + max(exchange.agreement, exchange.cycle)  # by then each kind of exchange has run once
    begun: _Begun | None = None
    with contextlib.closing(step_batches(run)) as batches:
        while done < phase.end:
            first_s = FIRST_STEP_S if step is None else 0.0
            run.doing("reading rows", first_s)
            batch, waited_s = next(batches)
            run.doing("agreeing on counts", first_s)
            counts, stop = _agree(run, batch, done)
            number = done + 1
            with_times = any(hook.wants_times(number) for hook in run.hooks)
            replaying = [] if stop else [hook for hook in run.hooks if hook.wants_replay(number)]
            shapes = tuple(array.shape for array in batch.micro_batches[0].values())
            are_new = all(shapes != others for *_, others in compiled)  # on each stair of the mask rate
            if begun and (stop or with_times or replaying or are_new):
                begun = _finish(run, step, begun)
            if stop and (jumped := run.state.progress.jumped_in_a_row):
                left = JUMP_STEPS - jumped
                run.say(f"asked to stop: at most {left} more steps first show whether the loss comes back")
            elif stop:
                for hook in run.hooks:
                    hook.stopping()
                run.say(run.ended or f"asked to stop: saved at step {done}; the same command resumes")
                return False
            rate = learning_rate(phase.settings, number - phase.begin)
            progress = run.state.progress
            inputs = step_inputs(run.recipe, progress.steps_before + done, progress.task, counts, rate)
            if are_new and step:
                run.say(f"step {number}: rows have another number of masked places; it is compiled once more")
            if are_new:
                run.doing("planning and compiling", FIRST_STEP_S)
                share_choices(run, batch, inputs, step)
            if step is None:
                step = planned_step(run, batch, inputs)
            checked = None
            for hook in replaying:
                run.doing("replaying a micro-batch", FIRST_STEP_S)
                checked = hook.replay(number, step, batch, inputs)
            kind = (with_times, checked is not None, checked == phase.micro_batches - 1, shapes)
            compiles = number <= compiled_after or kind not in compiled
            if compiles:
                run.doing("planning and compiling", FIRST_STEP_S)
                compiled.add(kind)
            else:
                run.doing("forward, backward and update")
            for hook in run.hooks:
                hook.begin(number)
            started = step.start(batch.micro_batches, batch.first_rows, inputs, with_times, checked)
            if begun:
                _finish(run, step, begun)
            begun, done = _Begun(number, started, batch, inputs, counts, rate, waited_s), number
            waiting = [hook for hook in run.hooks if hook.wants_state(number)]
            if waiting or compiles or with_times or run.exchange.works_after_steps or not has_gpu():
                begun = _finish(run, step, begun)
            if compiles:
                keep_choices(run)
    return True


def _finish(run: Run, step: TrainStep, begun: _Begun) -> None:
    """Wait for a step, count it, and show it to the hooks."""
    number, started, batch, inputs, counts, rate, waited_s = begun
    result = started.result()
    scale = run.state.progress.count(result.finite, run.recipe.numerics)
    loss = float(run.task.loss(result.sums, counts))
    if notice := run.exchange.after_step(number, loss):
        run.say(notice)
    event = StepEvent(number, step, result, counts, loss, scale, rate, batch, inputs, waited_s)
    for hook in run.hooks:
        hook.step(event)


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
