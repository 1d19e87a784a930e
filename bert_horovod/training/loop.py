"""The training run: phases of optimizer steps from a token store to a checkpoint."""

import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.corpus.store import Store
from bert_horovod.costs.derived import derive
from bert_horovod.errors import UserError
from bert_horovod.exchange.reducer import GradientReducer
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.recipe.sections import Phase, Recipe
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.directory import stop_requested
from bert_horovod.runs.saving import Saver
from bert_horovod.runtime.devices import peak_memory_bytes
from bert_horovod.training.announce import print_end, print_start
from bert_horovod.training.hooks.consistency import Consistency
from bert_horovod.training.hooks.divergence import Diverged, bad_batches, pass_over
from bert_horovod.training.hooks.divergence import check as check_divergence
from bert_horovod.training.hooks.evaluation import Evaluator
from bert_horovod.training.hooks.metrics import Interval, Telemetry, duration, step_metrics
from bert_horovod.training.hooks.profile import StepProfiler
from bert_horovod.training.hooks.timeline import StepTimeline
from bert_horovod.training.hooks.watchdog import Watchdog
from bert_horovod.training.inputs import shared_inputs, step_inputs
from bert_horovod.training.overlap import step_with_plan
from bert_horovod.training.start import first_state, open_rows_once, require_equal
from bert_horovod.training.step import StepInputs, StepResult, TrainStep, xla_mode

MOST_ROLLBACKS = 3  # to one checkpoint
_SHOWN = 5  # micro-batches of a step that are named as not finite
_INDEXED_PER_S = 1e6  # tokens of a store, if disk and processor are slow


@dataclass(frozen=True)
class Job:
    """What a user asks for."""

    recipe: Recipe
    store: Store
    output_dir: Path
    index_dir: Path | None = None
    init_checkpoint: Path | None = None
    max_steps: int | None = None  # counted from the run's beginning; the schedule does not notice
    stop_at: float | None = None  # in seconds since the epoch; rank 0's counts


class _Where(NamedTuple):
    """The phase that is trained."""

    number: int
    begin: int  # its first step's number, from 0, in the run
    end: int  # one past the last step to be trained
    rows_per_epoch: int


def pretrain(job: Job, world: World) -> None:
    """Train until the recipe's end, `max_steps`, or a request to stop; resumes what output_dir holds."""
    watchdog = Watchdog(world, job.recipe.execution.stall_s)
    try:
        _Run(job, world, watchdog).run()
    finally:
        watchdog.close()


class _Run:
    def __init__(self, job: Job, world: World, watchdog: Watchdog) -> None:
        self.job, self.world, self.recipe, self.watchdog = job, world, job.recipe, watchdog
        self.xla = xla_mode(self.recipe)
        self.last_step = min(self.recipe.total_steps, job.max_steps or self.recipe.total_steps)
        self.stop_signal = False
        require_equal(bytes.fromhex(job.store.hash), "token store", world)
        self.reducer: GradientReducer | None = None  # of the phase that is trained
        self.telemetry: Telemetry | None = None  # rank 0's
        self.saver: Saver | None = None  # rank 0's
        self.profiler: StepProfiler | None = None  # rank 0's
        self.peak_flops_per_s: float | None = None  # of all ranks; rank 0's to know
        self.saved_step = -1
        self.rollbacks = (-1, 0)  # the step that was gone back to, and how often
        self.held_out: dict[str, float] = {}
        self._load()

    def _load(self) -> None:
        """Take the newest checkpoint, or start from the beginning."""
        self.watchdog.begin("loading the state", 0)
        job = self.job
        self.state, self.resumed_from = first_state(
            self.recipe, job.store, job.output_dir, job.init_checkpoint, self.world
        )
        self.consistency = Consistency(self.state, self.world)

    def run(self) -> None:
        first_step = self.state.progress.step
        if self.world.rank == 0:
            self.peak_flops_per_s = print_start(self.recipe, self.world, self.xla)  # while the other ranks wait
            start = f"resuming from {self.resumed_from}" if self.resumed_from else None
            print(start or f"starting from {self.job.init_checkpoint or 'fresh parameters'}", flush=True)
            execution, output_dir = self.recipe.execution, self.job.output_dir
            self.telemetry = Telemetry(output_dir, first_step, self.last_step, execution.tensorboard)
            self.saver = Saver(self.state, output_dir, self.recipe, self.job.store, self.telemetry.say)
            self.profiler = StepProfiler(output_dir / "tensorboard", execution.profile_steps, self.telemetry.say)
            if first_step >= self.last_step:
                self.telemetry.say(f"nothing to do: the run is at step {first_step} of {self.last_step}")
        self.timeline = StepTimeline(
            self.job.output_dir / "timeline", self.recipe.execution.timeline, self.world, self._say
        )
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        started = time.monotonic()
        try:
            while not self._phases():
                pass
        finally:
            if self.profiler:
                self.profiler.close(self.state.progress.step)
            self.timeline.close(self.state.progress.step)
        steps = self.state.progress.step - first_step
        self._finish_saving()
        if self.telemetry:
            if steps:
                print_end(self.recipe, self.state.progress, steps, time.monotonic() - started, self.held_out, self._say)
                self._say(f"checkpoint: {path_of(self.job.output_dir, self.state.progress.step)}")
            self.telemetry.close()
        self.watchdog.close()  # rank 0 may have waited long for room
        self.world.barrier()  # no rank leaves while rank 0 still writes

    def _phases(self) -> bool:
        """Train to the end, or to a request to stop; False after going back to a checkpoint."""
        begin = 0
        try:
            for i, phase in enumerate(self.recipe.phase):
                end = min(begin + phase.steps, self.last_step)
                if self.state.progress.step < end and not self._phase(i, phase, begin, end):
                    break
                begin += phase.steps
        except Diverged as error:
            if self.recipe.numerics.on_divergence == "stop":
                raise UserError(f"{error}. The last checkpoint is whole; a run goes on from it") from error
            self._roll_back(error)
            return False
        return True

    def _phase(self, i: int, phase: Phase, begin: int, end: int) -> bool:
        """Run the rest of a phase, up to step `end`; False if the run was asked to stop."""
        self._begin("opening the rows", self.job.store.manifest["totals"]["tokens"] / _INDEXED_PER_S)
        rows = open_rows_once(self.job.store, self.recipe, i, "train", self.job.index_dir, self.world)
        derived = derive(self.recipe, phase, self.world.size, rows.masked_slots, rows.sequences)
        held_out = open_rows_once(self.job.store, self.recipe, i, "held_out", self.job.index_dir, self.world)
        self.where = _Where(i, begin, end, rows.count)
        evaluator = Evaluator(
            self.recipe.model,
            self.recipe.objective.pairs,
            ComputePolicy(tf.as_dtype(self.recipe.numerics.precision), self.xla),
            held_out,
            self.recipe.execution.evaluate_rows,
            self.recipe.execution.micro_batch,
            self.world,
        )
        step_function: TrainStep | None = None
        require_equal(self.state.hash(), "parameters", self.world)
        self._say(
            f"phase {i}: sequence length {phase.sequence_length}, {rows.count:,} rows an epoch; "
            f"{'tracing' if self.xla == 'off' else 'compiling with XLA'} for the first step, which takes a while"
        )
        started: float | None = time.monotonic()
        progress, execution = self.state.progress, self.recipe.execution
        passed_over = progress.passed_over.get(str(i), 0) - begin
        interval = Interval()
        inputs = step_inputs(
            self.job.store, self.recipe, phase, rows, self.world, progress.step + passed_over, end + passed_over
        )
        with contextlib.closing(inputs):
            while progress.step < end:
                self._begin("reading rows")
                (batches, first_rows, counts), waited = next(inputs)
                self._begin("agreeing on counts")
                totals = self._agree(counts)
                if totals is None:
                    self._save()
                    self._finish_saving()
                    self._say(f"asked to stop: saved at step {progress.step}; the same command resumes")
                    return False
                rate = learning_rate(phase, progress.step - begin + 1, self.recipe.optimizer.decay_power)
                shared = shared_inputs(self.recipe, progress, totals, rate, derived.micro_batches, self.world)
                if step_function is None:
                    self._begin("planning and compiling")
                    step_function = self._plan_step(i, derived.micro_batches, batches[-1], shared)
                self.timeline.begin(progress.step + 1)
                if started is None:
                    self._begin("forward, backward and update")
                with self.profiler.step(progress.step + 1) if self.profiler else contextlib.nullcontext():
                    result = step_function.run(batches, first_rows, shared)
                self.timeline.end(progress.step + 1, result.times, self.reducer.plan)
                if started is not None:
                    self._say(f"the first step took {duration(time.monotonic() - started)}, all before it included")
                started = None
                losses = result.sums / [totals[0], totals[0], totals[1], totals[1]]
                scale = progress.count(result.finite, self.recipe.numerics)
                if not result.finite and (scale <= 1 or not np.isfinite(losses[0])):
                    self._begin("looking for what is not finite")
                    found = step_function.not_finite(batches, first_rows, shared)
                    self._report_bad_batches(progress.step - 1 + passed_over, found)
                check_divergence(progress, self.recipe.numerics, float(losses[0] + losses[2]), result.finite, scale)
                interval.add(phase.global_batch, waited, result.reduce_wait_s, counts[2])
                logged = progress.step % execution.log_steps == 0 or progress.step == end
                if logged or progress.step == 1:
                    self._begin("writing metrics")
                    self._log(result, losses, rate, interval, derived.flops_per_row)
                    interval = Interval()
                elif self.telemetry:
                    self.telemetry.advance(progress.step, None)
                if (execution.evaluate_steps and progress.step % execution.evaluate_steps == 0) or progress.step == end:
                    self._begin("evaluating")
                    self._evaluate(evaluator)
                self._keep()
        return True

    def _keep(self) -> None:
        """After a step: compare the state over ranks and save it, where it is time to."""
        progress, execution = self.state.progress, self.recipe.execution
        save = progress.step % execution.checkpoint_steps == 0 or progress.step == self.where.end
        if execution.consistency_steps and (save or progress.step % execution.consistency_steps == 0):
            self._begin("comparing the state over ranks")
            self.consistency.check(progress.step)
        if save or (self.saver and self.saver.retry_due()):
            self._save()

    def _begin(self, doing: str, more_s: float = 0) -> None:
        self.watchdog.begin(doing, self.state.progress.step + 1, more_s)

    def _report_bad_batches(self, batch: int, found: list[tuple[int, list[str]]]) -> None:
        step, (i, *_, rows_per_epoch) = self.state.progress.step, self.where
        rows, micro_batch = self.recipe.phase[i].global_batch, self.recipe.execution.micro_batch
        bad = bad_batches(found, batch, rows, micro_batch, rows_per_epoch, self.world)
        if self.telemetry is None:
            return
        flags = f"--data_dir {self.job.store.path} --recipe {self.job.output_dir / 'recipe.toml'} --phase {i}"
        texts = [entry.describe(flags) for entry in bad[:_SHOWN]]
        for text in texts or ["what ranks computed is finite, but its sum over ranks, or the float16 wire, overflowed"]:
            self.telemetry.incident(step, f"step {step}: update skipped: {text}")

    def _roll_back(self, error: Diverged) -> None:
        """Go on from the last checkpoint with rows that no step has taken."""
        diverged = self.state.progress
        self._finish_saving()
        self._load()
        progress = self.state.progress
        step, count = self.rollbacks
        self.rollbacks = (progress.step, count + 1 if step == progress.step else 1)
        if self.rollbacks[1] > MOST_ROLLBACKS:
            raise UserError(
                f"{error}. The run has gone back to step {progress.step} {MOST_ROLLBACKS} times and diverged each time"
            )
        pass_over(progress, diverged, self.recipe.phase)
        self.reducer, self.saved_step = None, progress.step
        if self.telemetry:
            self.telemetry.cut_back(progress.step)
            self.telemetry.incident(
                progress.step,
                f"{error}. Back to step {progress.step}; passing over the rows of the {diverged.step - progress.step} "
                f"steps since (rollback {self.rollbacks[1]} of at most {MOST_ROLLBACKS} from there)",
            )

    def _plan_step(self, i: int, micro_batches: int, batch: dict[str, tf.Tensor], inputs: StepInputs) -> TrainStep:
        if self.reducer is not None:  # the phase before
            self.state.progress.wire_maxima = self.reducer.maxima_by_name()
        step, self.reducer, expectation = step_with_plan(
            self.recipe, self.state, self.world, i, micro_batches, batch, inputs
        )
        if expectation:
            rows = sum(expectation.profile.rows.values())
            self._say(expectation.describe(self.reducer.wire_bytes(rows)))
        elif self.world.size > 1:
            self._say(
                f"all-reduces: {len(self.reducer.plan.buckets)} bucket(s), {self.reducer.bytes_reduced():,} bytes"
            )
        return step

    def _say(self, text: str) -> None:
        if self.telemetry:
            self.telemetry.say(text)

    def _agree(self, counts: np.ndarray) -> np.ndarray | None:
        """The step's counts over all ranks, or None if any rank was asked to stop: one small all-reduce."""
        late = self.job.stop_at is not None and time.time() >= self.job.stop_at
        stop = self.stop_signal or (self.world.rank == 0 and (late or stop_requested(self.job.output_dir)))
        totals = self.world.all_reduce(tf.constant([*counts, float(stop)], tf.float64), "counts").numpy()
        # Pairs may be missing from a small global batch: their loss is 0 then, not 0 / 0.
        return None if totals[-1] else np.maximum(totals[:-1], 1)

    def _log(
        self, result: StepResult, means: np.ndarray, rate: float, interval: Interval, flops_per_row: float
    ) -> None:
        tokens = self.world.all_reduce(tf.constant(interval.tokens, tf.float64), "tokens").numpy()
        if self.telemetry is None:
            return
        pairs = self.recipe.objective.pairs
        metrics = {
            **step_metrics(self.state.progress, self._position(), result, means, rate, pairs),
            **interval.rates(float(tokens), flops_per_row, self.peak_flops_per_s),
            "bytes_reduced": self.reducer.bytes_reduced(result.rows),
            "wire_bytes": self.reducer.wire_bytes(result.rows),
            "memory_bytes": peak_memory_bytes(),
            "time": time.time(),
        }
        self.telemetry.record(metrics)
        self.telemetry.advance(metrics["step"], metrics)

    def _evaluate(self, evaluator: Evaluator) -> None:
        self.held_out = evaluator.evaluate(self.state.parameters)
        if self.telemetry:
            self.telemetry.record({"step": self.state.progress.step, **self.held_out})
            self.telemetry.say(
                "held out: "
                + "  ".join(f"{name.removeprefix('held_out_')} {value:.4f}" for name, value in self.held_out.items())
            )

    def _save(self) -> None:
        self._begin("saving")
        if self.saver and self.saved_step != self.state.progress.step:
            if self.reducer is not None:
                self.state.progress.wire_maxima = self.reducer.maxima_by_name()
            self.saver.save(self.state, self._position())
        self.saved_step = self.state.progress.step

    def _finish_saving(self) -> None:
        if self.saver:
            self._begin("saving")
            self.saver.finish(lambda: self._begin("waiting for room for the checkpoint"))

    def _position(self) -> dict[str, int]:
        number, begin, _, rows_per_epoch = self.where
        batches = self.state.progress.step - begin + self.state.progress.passed_over.get(str(number), 0)
        epoch, row = divmod(batches * self.recipe.phase[number].global_batch, rows_per_epoch)
        return {"phase": number, "epoch": epoch, "row": row}

    def _on_signal(self, number: int, frame: object) -> None:
        self.stop_signal = True
