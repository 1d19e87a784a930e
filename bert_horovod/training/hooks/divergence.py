"""Detects divergence of the training, goes back, and finds the micro-batches whose values are not finite."""

import shlex
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.positions import step_positions
from bert_horovod.collectives.world import World, from_all_ranks, from_rank_0
from bert_horovod.errors import UserError
from bert_horovod.recipe.settings import Numerics, Phase
from bert_horovod.runs.checkpoint import paths
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.entering import open_state
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.rechecking import Recheck
from bert_horovod.training.run import Run

MEAN_DECAY = 0.95  # decay of the moving mean of losses
_SHOWN = 5  # micro-batches of a step that are reported as not finite, at most
_OTHER_PRECISION = "set numerics.precision to bfloat16 or float32"  # of float16
_PASS_OVER = 'let the run pass over such rows: numerics.on_divergence = "rollback"'
SETTLED = 20  # updates before losses are compared with the moving mean: early losses may rise
JUMP_STEPS = 10  # so many steps in a row a loss that has jumped must stay up to be divergence; else it was a spike
MOST_SKIPPED = 50  # so many skipped updates in a row are divergence; a loss scale that has fallen to 1 is, too
MOST_ROLLBACKS = 3  # to the same checkpoint


class Diverged(UserError):
    """The training has diverged; raised on all ranks."""


class BadBatch(NamedTuple):
    """A micro-batch whose forward or backward gives values that are not finite."""

    rank: int
    epoch: int
    row: int  # number of its first row in the epoch
    rows: int
    tensor: str  # first parameter that is not finite, or else the first in backward's order whose gradient is not
    more: int  # number of further such tensors

    def describe(self, flags: str) -> str:
        """A message for people; `flags`: those of `bert-horovod inspect` that choose run and phase; "": it has none."""
        more = f" (and in {self.more} more)" if self.more else ""
        rows = f"{self.rows} from row {self.row} of epoch {self.epoch} on"
        if flags:
            rows = f"bert-horovod inspect {flags} --epoch {self.epoch} --row {self.row} --rows {self.rows}"
        tensors = f"{self.tensor} or its gradient{more}"
        return f"rank {self.rank} found numbers that are not finite in {tensors}. Its rows: {rows}"


class DivergenceHook(Hook):
    """Checks every step; all ranks check the same numbers, so all raise the same error."""

    def phase(self) -> None:
        self._recheck: Recheck | None = None
        progress = self.run.state.progress
        if progress.jumped_in_a_row and progress.mean_loss is None:  # the model has grown: no losses to come back to
            raise Diverged(
                f"step {progress.step}: the loss was far above its mean as the phase ended, and the next phase would "
                f"grow that model. {_mend(self.run.recipe.phase[self.run.phase.number - 1])}"
            )
        last_two = self.run.recipe.phase[: self.run.phase.number + 1][-2:]
        other_texts = len({phase.mixture or self.run.recipe.data.mixture for phase in last_two}) > 1
        if other_texts and progress.step == self.run.phase.begin and not progress.jumped_in_a_row:
            progress.mean_loss = None  # a new language may be nats above it, without divergence

    def step(self, event: StepEvent) -> None:
        run, numerics = self.run, self.run.recipe.numerics
        finite = event.result.finite
        if not finite and (event.loss_scale <= 1 or not np.isfinite(event.loss)):
            run.doing("looking for what is not finite")
            self._report(event)
        progress, phase = run.state.progress, run.phase.settings
        jumped, mean = progress.jumped_in_a_row, progress.mean_loss
        check(progress, numerics, phase, event.loss, finite, event.loss_scale, event.step == run.last_step)
        if run.journal is not None and bool(jumped) != bool(progress.jumped_in_a_row):
            text = (
                f"back at {event.loss:.4g}"
                if jumped
                else f"{event.loss:.4g}, and was {mean:.4g} in the mean of the steps before; if it stays up for "
                f"{JUMP_STEPS} steps the run has diverged, and no checkpoint is written until then"
            )
            run.journal.incident(event.step, f"step {event.step}: the loss is {text}")

    def _report(self, event: StepEvent) -> None:
        run, batch = self.run, event.batch
        self._recheck = self._recheck or Recheck(event.train_step)
        not_finite = self._recheck.not_finite(batch.micro_batches, batch.first_rows, event.inputs, event.loss_scale)
        phase, micro_batch, rows = run.phase, run.recipe.execution.micro_batch, run.phase.settings.global_batch
        bad = bad_batches(not_finite, batch.number, rows, micro_batch, phase.source.count, run.world)
        if run.journal is None:
            return
        texts = [bad_batch.describe(inspecting(run)) for bad_batch in bad[:_SHOWN]]
        overflow = overflow_of_sums(run.recipe.numerics.wire, run.world.size, phase.micro_batches)
        for text in texts or [overflow]:
            run.journal.incident(event.step, f"step {event.step}: update skipped: {text}")


def inspecting(run: Run) -> str:
    """The flags of `bert-horovod inspect` for run and phase; "" for labelled data, and behind phases of another run."""
    data = "" if run.state.progress.phases_before else getattr(run.job.dataset, "flags", "")
    recipe = shlex.quote(str(run.job.output_dir / "recipe.toml"))
    return data and f"{data} --recipe {recipe} --phase {run.phase.number}"


def overflow_of_sums(wire: str, ranks: int, micro_batches: int) -> str:
    """What may not be finite if each micro-batch's gradient is."""
    causes = [
        *(["their sum over micro-batches"] if micro_batches > 1 else []),
        *(["their sum over ranks"] if ranks > 1 else []),
        *([f"the {wire} wire"] if ranks > 1 and wire != "float32" else []),
        "their norm in float32",
    ]
    return f"each micro-batch's gradients are finite, but too large: {' or '.join(causes)} overflowed"


def check(
    progress: Progress,
    numerics: Numerics,
    phase: Phase,
    loss: float,
    finite: bool,
    loss_scale: float,
    last: bool = False,
) -> None:
    """Check a step that is done, and update the moving mean of losses and the length of a jump in `progress`.

    `loss_scale`: that of the step, 1 without loss scaling. Raises Diverged if many updates in a row were skipped, the
    loss scale cannot fall further, or the loss has jumped and stays up for JUMP_STEPS steps or up to the run's last.
    """
    if progress.skipped_in_a_row >= MOST_SKIPPED:
        half = numerics.precision == "float16"
        scale, others = (f" (loss scale {progress.loss_scale:g})", (_OTHER_PRECISION,)) if half else ("", ())
        raise Diverged(
            f"step {progress.step}: {progress.skipped_in_a_row} updates in a row had gradients that are not finite"
            f"{scale}; expected none or few. {_mend(phase, *others)}"
        )
    if not finite and numerics.precision == "float16" and loss_scale <= 1:
        raise Diverged(
            f"step {progress.step}: the loss scale has fallen to 1 and gradients still overflow float16; expected it "
            f"to settle far above. {_mend(phase, _OTHER_PRECISION)}"
        )
    mean = progress.mean_loss
    settled = mean is not None and progress.updates > SETTLED
    if finite and settled and numerics.loss_jump and not loss <= mean + numerics.loss_jump:
        progress.jumped_in_a_row += 1
    elif finite:
        progress.jumped_in_a_row = 0
        progress.mean_loss = loss if mean is None else MEAN_DECAY * mean + (1 - MEAN_DECAY) * loss
    jumped = progress.jumped_in_a_row
    if jumped >= JUMP_STEPS or (jumped and (last or (finite and not np.isfinite(loss)))):
        raise Diverged(
            f"step {progress.step}: the loss is {loss:.4g}, for {jumped} step{'s' * (jumped > 1)} far above its mean "
            f"of {mean:.4g}; expected it to come back to at most numerics.loss_jump = {numerics.loss_jump:g} more "
            f"within {JUMP_STEPS} steps{' and before the end' * last}. "
            + _mend(phase, *[_PASS_OVER] * (numerics.on_divergence == "stop"))
        )


def require_finite(state: TrainingState, means: dict[str, float]) -> None:
    """Raise Diverged if a parameter, a slot or a mean of the evaluation at this step is not finite.

    Updates with finite gradients can make such parameters, too; a checkpoint of them could not be used.
    """
    variables = state.variables()
    finite = tf.stack([tf.reduce_all(tf.math.is_finite(variable)) for variable in variables.values()]).numpy()
    bad = [name for name, fine in zip(variables, finite, strict=True) if not fine]
    bad += [name.replace("_", " ") for name, mean in means.items() if not np.isfinite(mean)]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise Diverged(
            f"step {state.progress.step}: {bad[0]}{more} is not finite, so no checkpoint is written. Lower the "
            "learning rates and weight decay, or look for labels that are too large"
        )


def _mend(phase: Phase, *others: str) -> str:
    lower, *more = (
        f"Lower the phase's learning_rate (now {phase.learning_rate:g})",
        f"lengthen its warmup (now {phase.warmup:g})",
        *others,
    )
    return ", ".join([lower, *more[:-1], f"or {more[-1]}"])


def pass_over(progress: Progress, diverged: Progress, phases: tuple[Phase, ...]) -> None:
    """After a rollback from `diverged` to `progress`, let the run skip the batches that it has used since then."""
    progress.passed_over, progress.skipped_in_a_row = dict(diverged.passed_over), 0
    begin = 0
    for i, phase in enumerate(phases):
        taken_back = min(diverged.step, begin + phase.steps) - max(progress.step, begin)
        if taken_back > 0:
            progress.passed_over[str(i)] = progress.passed_over.get(str(i), 0) + taken_back
        begin += phase.steps


def bad_batches(
    not_finite: list[tuple[int, list[str]]],
    batch: int,
    global_batch: int,
    micro_batch: int,
    rows_per_epoch: int,
    world: World,
) -> list[BadBatch]:
    """The bad micro-batches of all ranks in a step; equal on all ranks, which call it together."""
    own_positions = step_positions(batch, global_batch, world.rank, world.size, micro_batch)
    own_batches = []
    for k, names in not_finite:
        positions = [int(position) for position in own_positions[k][0] if position >= 0]
        epoch, row = divmod(positions[0], rows_per_epoch) if positions else (0, 0)
        own_batches.append(BadBatch(world.rank, epoch, row, len(positions), names[0], len(names) - 1))
    return [BadBatch(*fields) for fields in from_all_ranks(own_batches, world, "bad_batches")]


def roll_back(run: Run, error: Diverged) -> None:
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
