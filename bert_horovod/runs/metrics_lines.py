"""A line of metrics.jsonl: its schema, for all who show it, its reader, whoever wrote it, and its writer."""

import json
import math
import os
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.errors import RunError
from bert_horovod.storage.reading import open_regular, parse_json
from bert_horovod.storage.writing import write_atomically


def _metric(unit: str, part_of: str = "") -> Any:
    return field(metadata={"unit": unit} | ({"part_of": part_of} if part_of else {}))


@dataclass(frozen=True)
class StepMetrics:
    """A line of metrics.jsonl about a step; the task's own metrics come after the loss.

    The metrics up to skipped_steps are of the step alone: global, and equal in a resumed run. The others are over the
    interval since the line before; throughput is per wall time, including the wait for input.
    """

    step: int = _metric("optimizer steps of the run")
    phase: int = _metric("from 0")
    epoch: int = _metric("from 0")
    loss: float = _metric("nats")
    learning_rate: float = _metric("")
    gradient_norm: float | None = _metric("before clipping; null: this step's exchange does not know it")
    exchange_norm: float | None = _metric(
        "of what the exchange knows instead: the sums that it sent, or the ranks' mean; null: gradient_norm is known"
    )
    loss_scale: float = _metric("of the next step; 1 without one")
    skipped_steps: int = _metric("updates skipped so far")
    rows_per_s: float = _metric("rows a second, all ranks")
    tokens_per_s: float = _metric("real tokens a second, all ranks, no padding")
    flops_per_s: float = _metric("operations of matrix products a second, all ranks")
    flops_share: float | None = _metric("share of the devices' peak; null: peak unknown")
    step_s: float = _metric("seconds a step")
    input_wait_s: float = _metric("seconds a step, this rank", "step_s")
    reduce_wait_s: float | None = _metric("seconds a step, this rank; null: not measured in these steps", "step_s")
    saving_s: float = _metric("seconds a step, this rank, with evaluations and other work between steps", "step_s")
    compute_s: float | None = _metric(
        "seconds of forward and backward in one step, median over ranks; null: not measured in these steps", "step_s"
    )
    slowest_compute_s: float | None = _metric("the largest of the ranks' compute_s; null likewise")
    slowest_rank: int | None = _metric("the rank with slowest_compute_s; null likewise")
    bytes_reduced: float = _metric("payload of the step's collectives, bytes")
    wire_bytes: float = _metric("sent by a rank in the step, bytes")
    memory_bytes: int = _metric("peak of this rank so far, bytes")
    time: float = _metric("seconds since the epoch")


_MOST_BYTES = 1 << 30  # read of a file
_LINE_BYTES = 1 << 20  # a longer line is no line that a run writes
_NEWEST = 10  # lines about training steps that are kept whole
_STEPS = 1 << 63
_LARGEST = 1e100  # more than any float32 or count: sums and products of metrics stay finite


EVALUATIONS = ("held_out_", "probe_")  # prefixes of metrics that evaluations measure


class Lines(NamedTuple):
    """The content of metrics.jsonl."""

    lines: list[dict[str, Any]]  # numbers by metric; None: not finite, or unknown; and texts of incidents
    unreadable: int  # lines that are no such object

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines that tell of training steps: they have `loss` and, as a number, `step_s`."""
        return [line for line in self.lines if "loss" in line]


class Log:
    """The whole content of metrics.jsonl, in little memory: 8 bytes a number."""

    def __init__(self) -> None:
        # Float64 [lines about training steps] by metric; NaN: the line lacks it, not finite, or unknown.
        self.columns: dict[str, array[float]] = {}
        self.first: dict[str, Any] = {}  # line about a training step
        self.newest: list[dict[str, Any]] = []  # lines about training steps, oldest first
        self.events: list[dict[str, Any]] = []  # the lines that tell of an evaluation or an incident
        self.unreadable = 0  # lines, as in Lines

    def add(self, line: dict[str, Any] | None, count: int) -> bool:
        """Add a line; returns whether it is about a training step, of which there were `count` before."""
        if line is None:
            self.unreadable += 1
            return False
        if "incident" in line or any(name.startswith(EVALUATIONS) for name in line):
            self.events.append(line)
        if "loss" not in line:
            return False
        self.first = self.first or line
        self.newest = [*self.newest[1 - _NEWEST :], line]
        for name, value in line.items():
            if name != "incident":
                column = self.columns.setdefault(name, array("d"))
                column.extend([math.nan] * (count - len(column)))
                column.append(math.nan if value is None else value)
        return True


def read_log(path: Path) -> Log:
    """Read the whole file, as `read_lines` does; raises OSError."""
    log, count = Log(), 0
    for text in _texts(path, _MOST_BYTES):
        count += log.add(_read_line(text), count)
    for column in log.columns.values():
        column.extend([math.nan] * (count - len(column)))
    return log


def read_lines(path: Path, tail_bytes: int) -> Lines:
    """Read the lines that lie whole in the last bytes of the file; raises OSError.

    A last line without its line end is being written, and is left out.
    """
    read = [_read_line(text) for text in _texts(path, tail_bytes)]
    lines = [line for line in read if line is not None]
    return Lines(lines, len(read) - len(lines))


def _texts(path: Path, tail_bytes: int) -> Iterator[bytes]:
    with open_regular(path) as file:
        begin = max(0, file.seek(0, 2) - tail_bytes)
        file.seek(begin)
        if begin:
            file.readline()
        while text := file.readline(_LINE_BYTES):
            if text.strip() and (text.endswith(b"\n") or len(text) == _LINE_BYTES):
                yield text


def _read_line(text: bytes) -> dict[str, Any] | None:
    """The object of a line; None if it is no line that a run writes."""
    try:
        line = parse_json(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < _STEPS:
        return None
    if not all(type(value) is str if name == "incident" else _is_metric(value) for name, value in line.items()):
        return None
    if "loss" in line and not (line.get("step_s") is not None and line["step_s"] >= 0):
        return None
    return line


def _is_metric(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < _LARGEST)


class Journal:
    """Appends to output_dir/metrics.jsonl; rank 0 only.

    The run goes on from `first_step`: lines of later steps are dropped, and `dropped` has their losses by step. `say`
    prints a line for people, `also` is called with each line too.
    """

    def __init__(
        self,
        output_dir: Path,
        first_step: int,
        say: Callable[[str], None],
        also: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._path = output_dir / "metrics.jsonl"
        if first_step and not self._path.exists():
            say(f"warning: {self._path} is missing: the lines of the steps before {first_step + 1} are lost")
        self.dropped = self._begin(first_step)
        self._unwritten: list[str] = []  # lines that the full disk did not take
        self._writing = threading.Lock()
        self._say, self._also = say, also

    def record(self, metrics: dict[str, Any]) -> None:
        """Append an object to metrics.jsonl (null for None, nan and inf)."""
        finite = {
            name: None if isinstance(metric, float) and not math.isfinite(metric) else metric
            for name, metric in metrics.items()
        }
        with self._writing:
            self._unwritten.append(json.dumps(finite, allow_nan=False) + "\n")
            self._write()
        self._also(finite)

    def incident(self, step: int, text: str) -> None:
        """Print `text`, which says what went wrong, and append it to metrics.jsonl."""
        self._say(text)
        self.record({"step": step, "incident": text})

    def flush(self) -> None:
        """Write all waiting lines; raises RunError if the disk does not take them. Any thread may call it."""
        with self._writing:
            if self._unwritten and (failure := self._write()):
                raise RunError(f"cannot write the checkpoint before the lines of {self._path}: {failure}; make room")

    def cut_back(self, step: int) -> None:
        """Drop the lines of later steps: the run goes on from this step."""
        with self._writing:
            before = self._file
            self._begin(step)
            before.close()
            self.dropped.clear()  # other rows come now
            self._unwritten.clear()

    def close(self) -> None:
        """Flush and close all files; prints a warning if lines are lost because the disk is still full."""
        self._write()
        if self._unwritten:
            self._say(f"warning: {len(self._unwritten)} lines of {self._path} could not be written")
        self._file.close()

    def _begin(self, step: int) -> dict[int, float]:
        dropped = _cut_back(self._path, step)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (stays open as long as the run)
        self._torn_at: int | None = None  # file size before lines that were written in part
        return dropped

    def _write(self) -> str:
        """Write all waiting lines, or keep them for the next call and return why: a full disk ends no training."""
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
            return ""
        except OSError as error:
            self._torn_at = self._torn_at if size is None else size
            if len(self._unwritten) == 1:
                self._say(f"warning: cannot write {self._path}: {error.strerror}; its lines are kept until that works")
            return error.strerror


def _cut_back(path: Path, step: int) -> dict[int, float]:
    """Drop the lines of later steps, and those that are no lines of a run; returns the dropped losses by step."""
    if not path.exists():
        return {}
    kept_lines, dropped, cut = [], {}, False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            metrics = parse_json(line)
            cut = cut or metrics["step"] > step
        except (ValueError, KeyError, TypeError):
            continue
        if not cut:
            kept_lines.append(line + "\n")
        elif isinstance(metrics.get("loss"), float):
            dropped[metrics["step"]] = metrics["loss"]
    write_atomically(path, "".join(kept_lines))
    return dropped
