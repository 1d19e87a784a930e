"""How far a run was at each step: hours of training, tokens, and bytes that a rank sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PAUSE_S = 60  # a pause: the time between two lines exceeds that of their steps by more than this
AXES = ("hours", "tokens", "bytes")


class RunClock:
    """Hours, tokens and bytes at each step, computed from all lines; pauses are not counted.

    Args:
        columns: of the lines of metrics about training steps, oldest first: float64 by metric, NaN: unknown.

    Attributes:
        pauses: step, hours and seconds of each.
    """

    def __init__(self, columns: Mapping[str, Sequence[float]]) -> None:
        def column(name: str) -> Any:
            count = len(columns.get("step", ()))
            return np.asarray(columns[name]) if name in columns else np.full(count, np.nan)

        steps = column("step")
        done = np.diff(steps, prepend=0)
        seconds = column("step_s") * done
        tokens, sent = (np.nan_to_num(column(name)) for name in ("tokens_per_s", "wire_bytes"))
        per_line = (seconds / 3600, tokens * seconds, sent * done)
        self._steps = np.concatenate([[0], steps])
        self._at = [np.concatenate([[0.0], np.cumsum(each)]) for each in per_line]
        gaps = np.diff(column("time"), prepend=np.nan) - seconds  # NaN, where a time is not known, is no pause
        self.pauses = [
            {"step": int(steps[i]), "hours": float(self._at[0][i]), "seconds": float(gaps[i])}
            for i in np.flatnonzero(gaps > PAUSE_S)
        ]

    def columns(self, steps: Any) -> dict[str, list[Any]]:
        """By the name of each axis its values at the steps [n], interpolated between the lines around each step."""
        at = [np.interp(steps, self._steps, axis).tolist() for axis in self._at]
        return {"step": [int(step) for step in steps]} | dict(zip(AXES, at, strict=True))

    @property
    def last_step(self) -> int:
        """The step of the last line; 0 if there is none."""
        return int(self._steps[-1])

    @property
    def end(self) -> dict[str, float]:
        """By the name of each axis its value at the last line."""
        return {name: float(axis[-1]) for name, axis in zip(AXES, self._at, strict=True)}
