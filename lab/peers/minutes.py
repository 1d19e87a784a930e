"""When a contestant of lab/same_minutes.py saves, by the seconds that count: all since it was started but saving."""

import json
import os
import time
from pathlib import Path
from typing import Any


class Minutes:
    """The marks of a run, and what was reached.

    `work`: "began", the time at which the contestant was started; "marks", each with "mark", its name, and the
    "seconds" or the "step" at which it is due; "found", the JSON file that is written at the end.
    """

    def __init__(self, work: dict[str, Any]) -> None:
        self.beside_s = 0.0  # of saving and evaluating
        self._began, self._found, self._marks = work["began"], Path(work["found"]), list(work["marks"])
        self._reached: list[dict[str, Any]] = []
        self._ends: list[float] = []  # of steps

    def seconds(self) -> float:
        """Those that count until now."""
        return time.time() - self._began - self.beside_s

    def due(self, step: int) -> bool:
        """Whether a mark is reached with this step."""
        return any(self._is_reached(mark, step) for mark in self._marks)

    def ended(self, step: int, saves: bool) -> None:
        """Count a step that is done; `saves`: its parameters are saved, for all marks that are reached."""
        self._ends.append(self.seconds())
        if saves:
            reached = [mark for mark in self._marks if self._is_reached(mark, step)]
            self._reached += [{"mark": mark["mark"], "step": step, "seconds": self._ends[-1]} for mark in reached]
            self._marks = [mark for mark in self._marks if mark not in reached]

    def write(self, **facts: Any) -> None:
        """Write what was found, whole or not at all."""
        new = self._found.with_suffix(".new")
        new.write_text(json.dumps({"reached": self._reached, "ends": self._ends, **facts}), encoding="utf-8")
        os.replace(new, self._found)

    def _is_reached(self, mark: dict[str, Any], step: int) -> bool:
        return step >= mark["step"] if "step" in mark else self.seconds() >= mark["seconds"]
