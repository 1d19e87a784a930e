"""The training run: phases of optimizer steps from a token store to a checkpoint."""

import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.rows import Rows, open_rows
from bert_horovod.collectives.reducer import GradientReducer
from bert_horovod.collectives.world import World
from bert_horovod.config import Phase, Recipe
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.model.compute import Compute
from bert_horovod.optimizers.loss_scale import next_loss_scale
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.training import checkpoint
from bert_horovod.training.derived import derive, describe
from bert_horovod.training.device import describe_peak, find_peak, precision_advice
from bert_horovod.training.directory import stop_requested
from bert_horovod.training.evaluation import Evaluator
from bert_horovod.training.inputs import step_inputs
from bert_horovod.training.overlap import step_with_plan
from bert_horovod.training.profile import StepProfiler
from bert_horovod.training.start import first_state
from bert_horovod.training.state import ranks_that_differ
from bert_horovod.training.step import StepInputs, StepResult, TrainStep, xla_mode
from bert_horovod.training.telemetry import Interval, Telemetry, duration, peak_memory_bytes
from bert_horovod.training.timeline import StepTimeline

# A stream of the recipe's seed, apart from those of batches/rows.py.
_DROPOUT_STREAM = 101


@dataclass(frozen=True)
class Job:
    """What a user asks for."""

    recipe: Recipe
    store: Store
    output_dir: Path
    index_dir: Path | None = None
    init_checkpoint: Path | None = None
    max_steps: int | None = None  # counted from the run's beginning; the schedule does not notice


def pretrain(job: Job, world: World) -> None:
    """Train until the recipe's end, `max_steps`, or a request to stop; resumes what output_dir holds."""
    _Run(job, world).run()


class _Run:
    def __init__(self, job: Job, world: World) -> None:
        self.job, self.world, self.recipe = job, world, job.recipe
        self.xla = xla_mode(self.recipe)
        self.last_step = min(self.recipe.total_steps, job.max_steps or self.recipe.total_steps)
        self.stop_signal = False
        self._require_equal(bytes.fromhex(job.store.hash), "token store")
        self.state, self.resumed_from = first_state(self.recipe, job.store, job.output_dir, job.init_checkpoint, world)
        self.reducer: GradientReducer | None = None  # of the phase that is trained
        self.telemetry: Telemetry | None = None  # rank 0's
        self.profiler: StepProfiler | None = None  # rank 0's
        self.peak_flops_per_s: float | None = None  # of all ranks; rank 0's to know
        self.saved_step = -1
        self.held_out: dict[str, float] = {}

    def run(self) -> None:
        first_step = self.state.progress.step
        if self.world.rank == 0:
            self._print_start()
            self.telemetry = Telemetry(
                self.job.output_dir, first_step, self.last_step, self.recipe.execution.tensorboard
            )
            self.profiler = StepProfiler(
                self.job.output_dir / "tensorboard", self.recipe.execution.profile_steps, self.telemetry.say
            )
            if first_step >= self.last_step:
                self.telemetry.say(f"nothing to do: the run is at step {first_step} of {self.last_step}")
        self.timeline = StepTimeline(
            self.job.output_dir / "timeline", self.recipe.execution.timeline, self.world, self._say
        )
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        started = time.monotonic()
        try:
            self._phases()
        finally:
            if self.profiler:
                self.profiler.close(self.state.progress.step)
            self.timeline.close(self.state.progress.step)
        steps = self.state.progress.step - first_step
        if self.telemetry:
            if steps:
                self._print_end(steps, time.monotonic() - started)
            self.telemetry.close()
        self.world.barrier()  # no rank leaves while rank 0 still writes

    def _phases(self) -> None:
        begin = 0
        for i, phase in enumerate(self.recipe.phase):
            end = min(begin + phase.steps, self.last_step)
            if self.state.progress.step < end and not self._phase(i, phase, begin, end):
                break
            begin += phase.steps

    def _phase(self, i: int, phase: Phase, begin: int, end: int) -> bool:
        """Run the rest of a phase, up to step `end`; False if the run was asked to stop."""
        rows = self._rows(i, "train")
        derived = derive(self.recipe, phase, self.world.size, rows.masked_slots, rows.sequences)
        held_out = self._rows(i, "held_out")
        evaluator = Evaluator(
            self.recipe.model,
            self.recipe.objective.pairs,
            Compute(tf.as_dtype(self.recipe.numerics.precision), self.xla),
            held_out,
            self.recipe.execution.evaluate_rows,
            self.recipe.execution.micro_batch,
            self.world,
        )
        step_function: TrainStep | None = None
        self._require_equal(self.state.hash(), "parameters")
        self._say(
            f"phase {i}: sequence length {phase.sequence_length}, {rows.count:,} rows an epoch; "
            f"{'tracing' if self.xla == 'off' else 'compiling with XLA'} for the first step, which takes a while"
        )
        started: float | None = time.monotonic()
        progress, execution = self.state.progress, self.recipe.execution
        interval = Interval()
        steps = step_inputs(self.job.store, self.recipe, phase, rows, self.world, progress.step - begin, end - begin)
        for (batches, first_rows, counts), waited in steps:
            totals = self._agree(counts)
            if totals is None:
                self._save(i, begin, rows.count)
                self._say(f"asked to stop: saved at step {progress.step}; the same command resumes")
                steps.close()
                return False
            inputs, rate = self._step_inputs(phase, progress.step - begin, totals, derived.micro_batches)
            if step_function is None:
                step_function = self._plan_step(i, derived.micro_batches, batches[-1], inputs)
            self.timeline.begin(progress.step + 1)
            with self.profiler.step(progress.step + 1) if self.profiler else contextlib.nullcontext():
                result = step_function.run(batches, first_rows, inputs)
            self._after_update(result)
            self.timeline.end(progress.step, result.times, self.reducer.plan)
            if started is not None:
                self._say(f"the first step took {duration(time.monotonic() - started)}, all that precedes it included")
            started = None
            interval.add(phase.global_batch, waited, result.reduce_wait_s, counts[2])
            logged = progress.step % execution.log_steps == 0 or progress.step == end
            if logged or progress.step == 1:
                self._log(i, begin, rows.count, result, totals, rate, interval, derived.flops_per_row)
                interval = Interval()
            elif self.telemetry:
                self.telemetry.advance(progress.step, None)
            if (execution.evaluate_steps and progress.step % execution.evaluate_steps == 0) or progress.step == end:
                self._evaluate(evaluator)
            if progress.step % execution.checkpoint_steps == 0 or progress.step == end:
                self._save(i, begin, rows.count)
        return True

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

    def _require_equal(self, digest: bytes, what: str) -> None:
        others = ranks_that_differ(self.world, digest, what)
        if others:
            raise UserError(
                f"the {what} of ranks {others} is not that of rank 0: every host needs the same copy of the data "
                "and the same version of this program"
            )

    def _rows(self, phase: int, split: str) -> Rows:
        arguments = (self.job.store, self.recipe, phase, split, self.job.index_dir)
        if self.world.local_rank == 0:  # one process a host builds the index, the others map it
            open_rows(*arguments)
        self.world.barrier()
        return open_rows(*arguments, build=False)

    def _agree(self, counts: np.ndarray) -> np.ndarray | None:
        """The step's counts over all ranks, or None if any rank was asked to stop: one small all-reduce."""
        stop = self.stop_signal or (self.world.rank == 0 and stop_requested(self.job.output_dir))
        totals = self.world.all_reduce(tf.constant([*counts, float(stop)], tf.float64), "counts").numpy()
        # Pairs may be missing from a small global batch: their loss is 0 then, not 0 / 0.
        return None if totals[-1] else np.maximum(totals[:-1], 1)

    def _step_inputs(
        self, phase: Phase, step_in_phase: int, totals: np.ndarray, micro_batches: int
    ) -> tuple[StepInputs, float]:
        progress, recipe = self.state.progress, self.recipe
        rate = learning_rate(phase, step_in_phase + 1, recipe.optimizer.decay_power)
        # In float16 backward runs at the magnitude of a micro-batch mean times the loss scale.
        half = recipe.numerics.precision == "float16"
        scale = progress.loss_scale * self.world.size * micro_batches if half else 1.0
        key = keyed_hash(recipe.data.seed, _DROPOUT_STREAM, index=np.array([progress.step], np.uint64))
        return StepInputs(
            *(tf.constant(value, tf.float32) for value in (totals[0], totals[1], scale)),
            tf.constant(key, tf.uint64),
            *(tf.constant(value, tf.float32) for value in (rate, progress.updates + 1)),
        ), rate

    def _after_update(self, result: StepResult) -> None:
        progress, numerics = self.state.progress, self.recipe.numerics
        progress.step += 1
        progress.updates += result.finite
        progress.skipped_steps += not result.finite
        progress.skipped_in_a_row = 0 if result.finite else progress.skipped_in_a_row + 1
        if numerics.precision == "float16":
            progress.loss_scale, progress.good_steps = next_loss_scale(
                progress.loss_scale, progress.good_steps, result.finite, numerics.loss_scale_growth_steps
            )
        if progress.skipped_in_a_row >= numerics.max_skipped_steps:
            raise UserError(
                f"step {progress.step}: {progress.skipped_in_a_row} updates in a row had gradients that are not finite "
                f"(loss scale {progress.loss_scale:g}); expected none or few. Lower phase learning_rate, "
                "or set numerics.precision to bfloat16 or float32. The last checkpoint is whole"
            )

    def _log(
        self,
        i: int,
        begin: int,
        rows_per_epoch: int,
        result: StepResult,
        totals: np.ndarray,
        rate: float,
        interval: Interval,
        flops_per_row: float,
    ) -> None:
        masked, sequences, _ = totals
        tokens = self.world.all_reduce(tf.constant(interval.tokens, tf.float64), "tokens").numpy()
        if self.telemetry is None:
            return
        progress = self.state.progress
        means = result.sums / [masked, masked, sequences, sequences]
        position = self._position(i, begin, rows_per_epoch)
        pairs = self.recipe.objective.pairs
        metrics = {
            "step": progress.step,
            "phase": i,
            "epoch": position["epoch"],
            "loss": float(means[0] + means[2]),
            "mlm_loss": float(means[0]),
            "mlm_accuracy": float(means[1]),
            **({"nsp_loss": float(means[2]), "nsp_accuracy": float(means[3])} if pairs else {}),
            "learning_rate": rate,
            "gradient_norm": result.gradient_norm,
            "loss_scale": progress.loss_scale,
            "skipped_steps": progress.skipped_steps,
            **interval.rates(float(tokens), flops_per_row, self.peak_flops_per_s),
            "bytes_reduced": self.reducer.bytes_reduced(result.rows),
            "wire_bytes": self.reducer.wire_bytes(result.rows),
            "memory_bytes": peak_memory_bytes(),
            "time": time.time(),
        }
        self.telemetry.record(metrics)
        self.telemetry.advance(progress.step, metrics)

    def _evaluate(self, evaluator: Evaluator) -> None:
        self.held_out = evaluator.evaluate(self.state.parameters)
        if self.telemetry:
            self.telemetry.record({"step": self.state.progress.step, **self.held_out})
            self.telemetry.say(
                "held out: "
                + "  ".join(f"{name.removeprefix('held_out_')} {value:.4f}" for name, value in self.held_out.items())
            )

    def _save(self, phase: int, begin: int, rows_per_epoch: int) -> None:
        if self.telemetry and self.saved_step != self.state.progress.step:
            if self.reducer is not None:
                self.state.progress.wire_maxima = self.reducer.maxima_by_name()
            checkpoint.save(
                self.job.output_dir,
                self.state,
                self.recipe,
                self.job.store,
                self._position(phase, begin, rows_per_epoch),
            )
        self.saved_step = self.state.progress.step

    def _position(self, phase: int, begin: int, rows_per_epoch: int) -> dict[str, int]:
        rows = (self.state.progress.step - begin) * self.recipe.phase[phase].global_batch
        return {"phase": phase, "epoch": rows // rows_per_epoch, "row": rows % rows_per_epoch}

    def _on_signal(self, number: int, frame: object) -> None:
        self.stop_signal = True

    def _print_start(self) -> None:
        precision = self.recipe.numerics.precision
        if advice := precision_advice(precision):
            print(f"bert-horovod: warning: {advice}", file=sys.stderr, flush=True)
        if self.world.size > 2 and (self.recipe.execution.fusion_bytes or self.recipe.execution.autotune):
            print(
                "bert-horovod: warning: Horovod fuses tensors as they come (execution.fusion_bytes or autotune): sums "
                "depend on timing, and a resumed run equals one that was not stopped to rounding only",
                file=sys.stderr,
                flush=True,
            )
        peak = find_peak(precision, self.recipe.model)  # measured while the other ranks wait for this one
        if peak.flops_per_s:
            self.peak_flops_per_s = peak.flops_per_s * self.world.size
        print(
            f"world: {self.world.size} rank(s); XLA {self.xla}\n"
            f"{describe(self.recipe, self.world.size, bool(tf.config.get_visible_devices('GPU')))}\n"
            f"{describe_peak(peak, precision)}"
        )
        start = self.job.init_checkpoint or "fresh parameters"
        print(f"resuming from {self.resumed_from}" if self.resumed_from else f"starting from {start}", flush=True)

    def _print_end(self, steps: int, seconds: float) -> None:
        progress = self.state.progress
        rows = f"{steps:,} steps in {duration(seconds)}"
        held_out = "".join(f"; {name.replace('_', ' ')} {value:.4f}" for name, value in self.held_out.items())
        self.telemetry.say(
            f"at step {progress.step} of {self.recipe.total_steps}: {rows}; {progress.skipped_steps} skipped{held_out}"
        )
        self.telemetry.say(f"checkpoint: {self.job.output_dir / 'checkpoints' / f'step-{progress.step:08d}'}")
