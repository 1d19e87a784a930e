"""One step in flight: on a GPU the result of a step is read after the next one is enqueued.

So the GPU never waits for the host, except where a hook or the exchange needs the state between them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.training.building import build_phase_step
from bert_horovod.training.gpu_choices import keep_choices, share_choices
from bert_horovod.training.hooks.base import StepEvent
from bert_horovod.training.inputs import StepBatch, step_inputs
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StartedStep, StepInputs


class _Flight(NamedTuple):
    """A step that the device has to do or has done, but whose result the host has not read."""

    number: int  # in the run, from 1
    started: StartedStep
    counts: dict[str, float]
    event: Callable[..., StepEvent]  # of the result, the loss and the loss scale
    compiles: bool
    alone: bool  # no other step may begin before its end


class Ahead:
    """The steps of the run's open phase, of which one may be in flight; the first one builds the compiled step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step: TrainStep | None = None
        self._flight: _Flight | None = None
        exchange = run.recipe.exchange
        # By then each kind of exchange has run once.
        self._compiled_after = run.state.progress.step + max(exchange.agreement, exchange.cycle)
        # Kinds of steps that are compiled: with times, with checksums, these of the last micro-batch, shapes of arrays.
        self._compiled: set[tuple[bool, bool, bool, tuple[tuple[int, ...], ...]]] = set()

    @property
    def more_s(self) -> float:
        """Seconds that an action before the next step may take in addition to execution.stall_s."""
        return FIRST_STEP_S if self._step is None else 0.0

    def start(self, number: int, batch: StepBatch, counts: dict[str, float], waited_s: float) -> None:
        """Enqueue a step, and settle the one before it: before that, if this one cannot be enqueued behind it."""
        run, phase = self._run, self._run.phase
        with_times = any(hook.wants_times(number) for hook in run.hooks)
        replaying = [hook for hook in run.hooks if hook.wants_replay(number)]
        shapes = tuple(array.shape for array in batch.micro_batches[0].values())
        are_new = all(shapes != others for *_, others in self._compiled)  # on each stair of the mask rate
        if with_times or replaying or are_new:
            self.settle()
        rate = learning_rate(phase.settings, number - phase.begin)
        progress = run.state.progress
        inputs = step_inputs(run.recipe, progress.steps_before + number - 1, progress.task, counts, rate)
        step = self._compiled_step(number, batch, inputs) if are_new else self._step
        checked = None
        for hook in replaying:
            run.doing("replaying a micro-batch", FIRST_STEP_S)
            checked = hook.replay(number, step, batch, inputs)
        kind = (with_times, checked is not None, checked == phase.micro_batches - 1, shapes)
        compiles = number <= self._compiled_after or kind not in self._compiled
        if compiles:
            run.doing("planning and compiling", FIRST_STEP_S)
            self._compiled.add(kind)
        else:
            run.doing("forward, backward and update")
        for hook in run.hooks:
            hook.begin(number)
        started = step.start(batch.micro_batches, batch.first_rows, inputs, with_times, checked)
        self.settle()
        event = partial(
            StepEvent, number, step, counts=counts, learning_rate=rate, batch=batch, inputs=inputs, waited_s=waited_s
        )
        alone = compiles or with_times or run.exchange.works_after_steps or not has_gpu()
        self._flight = _Flight(number, started, counts, event, compiles, alone)

    def must_settle(self) -> bool:
        """Whether the step in flight must be settled before the next one begins."""
        waiting = [hook for hook in self._run.hooks if hook.wants_state(self._flight.number)]  # each is asked
        return bool(waiting) or self._flight.alone

    def _compiled_step(self, number: int, batch: StepBatch, inputs: StepInputs) -> TrainStep:
        """The step, for a batch with new shapes."""
        run = self._run
        if self._step is not None:
            run.say(f"step {number}: rows have another number of masked places; it is compiled once more")
        run.doing("planning and compiling", FIRST_STEP_S)
        share_choices(run, batch, inputs, self._step)
        self._step = self._step or build_phase_step(run, batch, inputs)
        return self._step

    def settle(self) -> None:
        """Wait for the step in flight, if there is one, count it, and show it to the hooks."""
        if self._flight is None:
            return
        run, flight, self._flight = self._run, self._flight, None
        result = flight.started.result()
        scale = run.state.progress.count(result.finite, run.recipe.numerics)
        loss = float(run.task.loss(result.sums, flight.counts))
        if notice := run.exchange.after_step(flight.number, loss):
            run.say(notice)
        event = flight.event(result=result, loss=loss, loss_scale=scale)
        for hook in run.hooks:
            hook.step(event)
        if flight.compiles:
            keep_choices(run)
