"""Names a rank that is slower than the others: its own time for forward and backward, without its wait for them."""

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

SLOW = 1.15  # times the median over ranks
_WINDOWS = 5  # the last ones that decide
_MOST = 4  # of them, in which a rank must be slow to be named
_FEW = 1  # of them, in which a named rank may still be slow when it is told that this has ended


class SlowRanks:
    """Decides from window to window whether a rank is to be named; equal on all ranks.

    `hosts`: by rank.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._slow: deque[int | None] = deque(maxlen=_WINDOWS)  # the slow rank of each window
        self._named: int | None = None

    def add(self, computing_s: np.ndarray, reading_s: np.ndarray, step_s: float) -> str:
        """Count a window; returns a line for people, or "" if there is nothing new to say.

        Args:
            computing_s: each rank's seconds of forward and backward in a step, float64 [ranks].
            reading_s: each rank's wait for its rows in a step, likewise.
            step_s: seconds of a step.
        """
        own_s = computing_s + reading_s
        slowest, median = int(own_s.argmax()), float(np.median(own_s))
        self._slow.append(slowest if own_s[slowest] >= SLOW * median else None)
        counts = Counter(rank for rank in self._slow if rank is not None)
        if self._named is not None and counts[self._named] <= _FEW:
            ended, self._named = self._named, None
            return f"{self._rank(ended)} is no longer slower than the others"
        if self._named is None and counts[slowest] >= _MOST:
            self._named = slowest
            excess = {"computing": computing_s, "reading rows": reading_s}
            most = max(excess, key=lambda kind: excess[kind][slowest] - np.median(excess[kind]))
            share = min(1.0, (own_s[slowest] - median) / step_s)
            return (
                f"{self._rank(slowest)} is slow, mostly by {most}: {own_s[slowest]:.3f} s of its own in a step, the "
                f"ranks' median is {median:.3f} s. All wait for it: that costs {share:.0%} of the time"
            )
        return ""

    def _rank(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"
