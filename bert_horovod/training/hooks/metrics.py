"""What a run says of itself: metrics.jsonl, TensorBoard, and a line or a bar for people."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from bert_horovod.runs.state import Progress
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.step import StepResult


class Telemetry:
    """Rank 0's reports. Throughput is over wall time, from one log step to the next, input included."""

    def __init__(self, output_dir: Path, first_step: int, total_steps: int, tensorboard: bool) -> None:
        self._path = output_dir / "metrics.jsonl"
        _cut_back(self._path, first_step)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (stays open as long as the run)
        self._unwritten: list[str] = []  # lines for which there was no room
        self._summaries = tf.summary.create_file_writer(str(output_dir / "tensorboard")) if tensorboard else None
        self._total = total_steps
        self._bar = tqdm(total=total_steps, initial=first_step, unit="step") if sys.stderr.isatty() else None
        self._started = time.monotonic()
        self._first_step = first_step

    def record(self, metrics: dict[str, Any]) -> None:
        """Append one object to metrics.jsonl (null for None and what is not finite) and its numbers to TensorBoard."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in metrics.items()
        }
        self._unwritten.append(json.dumps(finite, allow_nan=False) + "\n")
        self._write()
        if self._summaries is not None:
            with self._summaries.as_default(step=metrics["step"]):
                for name, value in metrics.items():
                    if name not in ("step", "time") and isinstance(value, int | float):
                        tf.summary.scalar(name, value)

    def incident(self, step: int, text: str) -> None:
        """Print what went wrong, and append it to metrics.jsonl."""
        self.say(text)
        self.record({"step": step, "incident": text})

    def cut_back(self, step: int) -> None:
        """Drop what was recorded after this step, from which the run goes on."""
        self._file.close()
        _cut_back(self._path, step)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        self._unwritten.clear()
        if self._bar is not None:
            self._bar.n = step

    def say(self, text: str) -> None:
        """Print a line for people, above the progress bar where there is one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def advance(self, step: int, metrics: dict[str, Any] | None) -> None:
        """Move the bar to `step`; with metrics, show them and the time left."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        if metrics is None:
            return
        shown = f"loss {metrics['loss']:.4f}  mlm_accuracy {metrics['mlm_accuracy']:.3f}"
        shown += f"  {metrics['rows_per_s']:.1f} rows/s"
        if self._bar is not None:
            self._bar.set_postfix_str(shown)
            return
        elapsed = time.monotonic() - self._started
        left = elapsed / (step - self._first_step) * (self._total - step)
        print(f"step {step}/{self._total}  {shown}  {duration(left)} left", flush=True)

    def _write(self) -> None:
        """Write all lines, or none for now: training does not end for want of room for its metrics."""
        content = memoryview("".join(self._unwritten).encode())
        size = self._file.tell()
        try:
            while content:  # a disk that is nearly full takes a part first
                content = content[self._file.write(content) :]
            self._unwritten.clear()
        except OSError as error:
            self._file.truncate(size)
            self._file.seek(size)
            if len(self._unwritten) == 1:
                self.say(f"warning: cannot write {self._path}: {error.strerror}; its lines are kept until that works")

    def close(self) -> None:
        """Flush and close everything; lines for which there is still no room are lost, and it is said so."""
        self._write()
        if self._unwritten:
            self.say(f"warning: {len(self._unwritten)} lines of {self._path} could not be written")
        self._file.close()
        if self._summaries is not None:
            self._summaries.close()
        if self._bar is not None:
            self._bar.close()


class Interval:
    """What adds up on this rank between two log steps."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = self._rows = 0
        self._input_wait_s = self._reduce_wait_s = 0.0
        self.tokens = 0.0  # real tokens of this rank, no padding

    def add(self, rows: int, input_wait_s: float, reduce_wait_s: float, tokens: float) -> None:
        """Count a step: rows of all ranks, the rest of this one."""
        self._steps += 1
        self._rows += rows
        self._input_wait_s += input_wait_s
        self._reduce_wait_s += reduce_wait_s
        self.tokens += tokens

    def rates(self, tokens: float, flops_per_row: float, peak_flops_per_s: float | None) -> dict[str, float | None]:
        """Throughput of all ranks, and means per step in seconds.

        Args:
            tokens: the sum over ranks.
            flops_per_row: operations of matrix products.
            peak_flops_per_s: of all ranks together, of which flops_share is a share; None: unknown, as the share is.
        """
        seconds = time.monotonic() - self._started
        flops_per_s = self._rows * flops_per_row / seconds
        return {
            "rows_per_s": self._rows / seconds,
            "tokens_per_s": tokens / seconds,
            "flops_per_s": flops_per_s,
            "flops_share": flops_per_s / peak_flops_per_s if peak_flops_per_s else None,
            "step_s": seconds / self._steps,
            "input_wait_s": self._input_wait_s / self._steps,
            "reduce_wait_s": self._reduce_wait_s / self._steps,
        }


def step_metrics(
    progress: Progress, position: dict[str, int], result: StepResult, means: np.ndarray, rate: float, pairs: bool
) -> dict[str, Any]:
    """A step's own values: global, and equal in a resumed run.

    Args:
        progress: after the step.
        position: in the data.
        result: the step's.
        means: float64 [4], of model.heads.Sums.
        rate: the learning rate.
        pairs: whether there is a pair head.
    """
    return {
        "step": progress.step,
        "phase": position["phase"],
        "epoch": position["epoch"],
        "loss": float(means[0] + means[2]),
        "mlm_loss": float(means[0]),
        "mlm_accuracy": float(means[1]),
        **({"nsp_loss": float(means[2]), "nsp_accuracy": float(means[3])} if pairs else {}),
        "learning_rate": rate,
        "gradient_norm": result.gradient_norm,
        "loss_scale": progress.loss_scale,
        "skipped_steps": progress.skipped_steps,
    }


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min, 3 d 04 h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600:02d} h"


def _cut_back(path: Path, step: int) -> None:
    """Drop what was logged after the step from which a run resumes, and a line that a kill left half-written."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        kept.append(line + "\n")
    write_atomically(path, "".join(kept))
