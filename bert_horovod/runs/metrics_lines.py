"""Reads metrics.jsonl for `report` and `status`, whoever wrote it. Imports no TensorFlow."""

import json
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.storage.reading import open_regular

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
    """The whole content of metrics.jsonl, in little memory: 8 bytes a number.

    Attributes:
        columns: float64 [lines about training steps] by metric; NaN: the line lacks it, not finite, or unknown.
        first, newest: the first and the newest lines about training steps, oldest first.
        events: the lines that tell of an evaluation or an incident.
        unreadable: as in Lines.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {}
        self.first: dict[str, Any] = {}
        self.newest: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.unreadable = 0

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
        line = json.loads(text)
    except (ValueError, RecursionError):
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
