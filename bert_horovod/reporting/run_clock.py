"""How far a run was at each step: hours of training, tokens, and bytes that a rank sent."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

PAUSE_S = 60  # a pause: the time between two lines exceeds that of their steps by more than this
AXES = ("hours", "tokens", "bytes")


class RunClock:
    """Hours, tokens and bytes at each step, computed from all lines; pauses are not counted.

    Args:
        steps: lines of metrics about training steps, oldest first.

    Attributes:
        pauses: step, hours and seconds of each.
    """

    def __init__(self, steps: Sequence[dict[str, Any]]) -> None:
        self.pauses: list[dict[str, float]] = []
        self._steps, self._at = [0], [(0.0, 0.0, 0.0)]
        before: dict[str, Any] = {}
        for line in steps:
            hours, tokens, sent = self._at[-1]
            done = line["step"] - self._steps[-1]
            seconds = line["step_s"] * done
            now_s, before_s = line.get("time"), before.get("time")
            gap_s = 0.0 if now_s is None or before_s is None else now_s - before_s - seconds
            if gap_s > PAUSE_S:
                self.pauses.append({"step": line["step"], "hours": hours, "seconds": gap_s})
            tokens += (line.get("tokens_per_s") or 0.0) * seconds
            sent += (line.get("wire_bytes") or 0.0) * done
            self._steps.append(line["step"])
            self._at.append((hours + seconds / 3600, tokens, sent))
            before = line

    def columns(self, steps: Sequence[int]) -> dict[str, list[Any]]:
        """By the name of each axis its values at the steps, interpolated between the lines around each step."""
        places = [self._place(step) for step in steps]
        return {"step": list(steps)} | {name: [place[i] for place in places] for i, name in enumerate(AXES)}

    @property
    def last_step(self) -> int:
        """The step of the last line; 0 if there is none."""
        return self._steps[-1]

    @property
    def end(self) -> dict[str, float]:
        """By the name of each axis its value at the last line."""
        return dict(zip(AXES, self._at[-1], strict=True))

    def _place(self, step: int) -> tuple[float, ...]:
        after = min(bisect_left(self._steps, step), len(self._steps) - 1)
        before = max(0, after - 1)
        s0, s1 = self._steps[before], self._steps[after]
        share = 1.0 if s1 == s0 else min(1.0, (step - s0) / (s1 - s0))
        return tuple(a + share * (b - a) for a, b in zip(self._at[before], self._at[after], strict=True))
