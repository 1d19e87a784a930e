"""Reads metrics.jsonl for `report` and `status`, whoever wrote it. Imports no TensorFlow."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.storage.reading import open_regular

_MOST_BYTES = 1 << 30  # read of a file
_STEPS = 1 << 63
_LARGEST = 1e100  # more than any float32 or count: sums and products of metrics stay finite


class Lines(NamedTuple):
    """The content of metrics.jsonl."""

    lines: list[dict[str, Any]]  # numbers by metric; None: not finite, or unknown; and texts of incidents
    unreadable: int  # lines that are no such object

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines that tell of training steps: they have `loss` and, as a number, `step_s`."""
        return [line for line in self.lines if "loss" in line]


def read_lines(path: Path, tail_bytes: int = _MOST_BYTES) -> Lines:
    """Read the lines that lie whole in the last bytes of the file; raises OSError.

    A last line without its line end is being written, and is left out.
    """
    with open_regular(path) as file:
        begin = max(0, file.seek(0, 2) - tail_bytes)
        file.seek(begin)
        *texts, _ = file.read(_MOST_BYTES).split(b"\n")
    texts = [text for text in texts[bool(begin) :] if text.strip()]
    lines = [line for line in map(_read_line, texts) if line is not None]
    return Lines(lines, len(texts) - len(lines))


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
