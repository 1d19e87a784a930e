"""Writes the metrics of a run to metrics.jsonl and TensorBoard."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import write_atomically


class Journal:
    """Appends to output_dir/metrics.jsonl; rank 0 only.

    Args:
        output_dir: the run's.
        first_step: the run goes on from this step; lines of later steps are dropped.
        tensorboard: whether numbers go to output_dir/tensorboard too.
        say: prints a line for people.
        also: called with each line too.

    `dropped`: the losses of the lines that were dropped at the beginning, by step.
    """

    def __init__(
        self,
        output_dir: Path,
        first_step: int,
        tensorboard: bool,
        say: Callable[[str], None],
        also: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._path = output_dir / "metrics.jsonl"
        if first_step and not self._path.exists():
            say(f"warning: {self._path} is missing: the lines of the steps before {first_step + 1} are lost")
        self.dropped = self._begin(first_step)
        self._unwritten: list[str] = []  # lines that the full disk did not take
        self._summaries = tf.summary.create_file_writer(str(output_dir / "tensorboard")) if tensorboard else None
        self._say, self._also = say, also

    def record(self, metrics: dict[str, Any]) -> None:
        """Append an object to metrics.jsonl (null for None, nan and inf) and its numbers to TensorBoard."""
        finite = {
            name: None if isinstance(metric, float) and not math.isfinite(metric) else metric
            for name, metric in metrics.items()
        }
        self._unwritten.append(json.dumps(finite, allow_nan=False) + "\n")
        self._write()
        self._also(finite)
        if self._summaries is not None:
            with self._summaries.as_default(step=metrics["step"]):
                for name, metric in metrics.items():
                    if name not in ("step", "time") and isinstance(metric, int | float):
                        tf.summary.scalar(name, metric)

    def incident(self, step: int, text: str) -> None:
        """Print `text`, which says what went wrong, and append it to metrics.jsonl."""
        self._say(text)
        self.record({"step": step, "incident": text})

    def cut_back(self, step: int) -> None:
        """Drop the lines of later steps: the run goes on from this step."""
        self._file.close()
        self._begin(step)
        self.dropped.clear()  # other rows come now
        self._unwritten.clear()

    def close(self) -> None:
        """Flush and close all files; prints a warning if lines are lost because the disk is still full."""
        self._write()
        if self._unwritten:
            self._say(f"warning: {len(self._unwritten)} lines of {self._path} could not be written")
        self._file.close()
        if self._summaries is not None:
            self._summaries.close()

    def _begin(self, step: int) -> dict[int, float]:
        dropped = _cut_back(self._path, step)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (stays open as long as the run)
        self._torn_at: int | None = None  # file size before lines that were written in part
        return dropped

    def _write(self) -> None:
        """Write all waiting lines, or keep them for the next call: a full disk must not end the training."""
        content = memoryview("".join(self._unwritten).encode())
        size = None
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                removed, self._file = self._file, open(self._path, "ab", buffering=0)  # noqa: SIM115
                removed.close()
                self._torn_at = None
                self._say(f"warning: {self._path} was removed: its lines up to here are lost")
            if self._torn_at is not None:
                self._file.truncate(self._torn_at)
            size = self._file.seek(0, os.SEEK_END)
            while content:
                content = content[self._file.write(content) :]
            self._torn_at = None
            self._unwritten.clear()
        except OSError as error:
            self._torn_at = self._torn_at if size is None else size
            if len(self._unwritten) == 1:
                self._say(f"warning: cannot write {self._path}: {error.strerror}; its lines are kept until that works")


def _cut_back(path: Path, step: int) -> dict[int, float]:
    """Drop the lines of steps after `step`, from which a run resumes, and a line that is incomplete after a kill.

    Returns: the losses of dropped lines, by step.
    """
    if not path.exists():
        return {}
    kept_lines, dropped, cut = [], {}, False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            metrics = json.loads(line)
            cut = cut or metrics["step"] > step
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        if not cut:
            kept_lines.append(line + "\n")
        elif isinstance(metrics.get("loss"), float):
            dropped[metrics["step"]] = metrics["loss"]
    write_atomically(path, "".join(kept_lines))
    return dropped
