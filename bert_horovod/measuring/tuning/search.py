"""The search: it starts at the recipe's settings, walks one line after another, then compares the best ones in turns.

The caller passes the function that measures, so that a table of measurements can replace a machine.
"""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bert_horovod.errors import RunError
from bert_horovod.measuring.tuning.candidates import Candidates, Machine, resolved
from bert_horovod.measuring.tuning.prediction import Pace, Prediction
from bert_horovod.measuring.tuning.trials import FAILED, Settings, Trial

CANNOT_WIN = 1.10  # times the best candidate's predicted step: a candidate with a longer predicted step is not tried
WORSE = 1.02  # times the best step: a line ends at a candidate that takes longer
GIVE_UP = 1.25  # times the best step: a trial above it ends after one step; large, as one step may not be typical
# Times the best step: candidates below it, and always the second best, are compared in turns. A candidate that is above
# it after two rounds drops out.
NEAR = 1.05
FINALISTS = 3  # at most, beside the recipe's settings
ROUNDS = 3


class Measure(Protocol):
    """Measures a candidate, in round `number` of the finals (from 1) or in the search (0). May end above `bound_s`."""

    def __call__(self, settings: Settings, number: int, bound_s: float) -> Trial: ...


@dataclass
class Found:
    """The result of a search."""

    settings: Settings
    rows_per_s: float
    gain: float | None  # rows/s over those of the recipe's settings; None: the recipe's settings do not work
    tried: int  # candidates measured in the search
    passed_over: dict[str, int] = field(default_factory=dict)  # candidates that were not tried, by the reason


class Search:
    """A search for the settings with the shortest step.

    Args:
        first: the recipe's settings.
        machine: a host of the run.
        candidates: the candidates that may be tried.
        prediction: predicts their memory and step time.
        measure: runs a candidate's trial.
        works_elsewhere: whether settings also work in the phases that are not measured.
    """

    def __init__(
        self,
        first: Settings,
        machine: Machine,
        candidates: Candidates,
        prediction: Prediction,
        measure: Measure,
        works_elsewhere: Callable[[Settings], bool],
    ) -> None:
        self._first, self._machine = first, machine
        self._candidates, self._prediction = candidates, prediction
        self._measure, self._works_elsewhere = measure, works_elsewhere
        self._trials: list[tuple[Settings, Trial]] = []
        self._over: dict[str, list[Settings]] = {}  # by reason
        self._finals: int | None = None  # trials of the finals that are left, at most; None: not begun
        self.best = first

    def run(self) -> Found:
        """Search; raises RunError if no settings work."""
        self._begin()
        while True:
            best_before = self.best
            trial = self._known(self.best)
            for lines in self._candidates.lines(self.best, trial.reduce_wait_s / trial.step_s):
                for line in lines(self.best):
                    self._walk(line)
            if self.best == best_before:
                break
        return self._decide()

    def left(self) -> int:
        """How many trials may be left, as far as is known now."""
        trial = self._known(self.best)
        if self._finals is not None or trial is None or trial.failure:
            return self._finals or 0
        ahead = [
            settings
            for lines in self._candidates.lines(self.best, trial.reduce_wait_s / trial.step_s)
            for line in lines(self.best)
            for settings in line
            if self._known(settings) is None and self._why_not(settings) is None
        ]
        return len(ahead) + 2 * ROUNDS

    def _begin(self) -> None:
        """Try the recipe's settings; if memory or time is not enough, try smaller micro-batches until one works."""
        trial = self._try(self._first)
        for settings in self._candidates.smaller(self._first) if trial.failure else ():
            if trial.failure == FAILED:
                break
            if self._prediction.fits(settings) and not (trial := self._try(settings)).failure:
                self.best = settings
                break
        if trial.failure:
            raise RunError(f"no settings work: the last try {trial.failure}: {trial.words}")

    def _walk(self, line: list[Settings]) -> None:
        """Try a line's candidates until one is worse than the best by more than noise."""
        for settings in line:
            trial = self._known(settings)
            if trial is None:
                if reason := self._why_not(settings):
                    self._over.setdefault(reason, []).append(resolved(settings, self._machine))
                    continue
                trial = self._try(settings)
            best_s = self._known(self.best).step_s
            if trial.step_s < best_s:
                self.best = settings
            elif trial.step_s > WORSE * best_s:
                return

    def _why_not(self, settings: Settings) -> str | None:
        """The reason why a candidate need not be tried, computed from the best trial; None: try it."""
        estimate = self._prediction.memory_bytes
        if not self._prediction.fits(settings) and estimate(settings) > estimate(self.best):  # the best fitted
            return "do not fit into memory"
        pace: Pace = self._prediction.pace(self.best, self._known(self.best))
        expected_s = self._prediction.step_s(settings, pace)
        if expected_s > CANNOT_WIN * self._prediction.step_s(self.best, pace):
            return "cannot win"
        return None

    def _try(self, settings: Settings) -> Trial:
        known_trial = self._known(self.best)
        trial = self._measure(settings, 0, GIVE_UP * known_trial.step_s if known_trial else math.inf)
        self._trials.append((settings, trial))
        return trial

    def _known(self, settings: Settings) -> Trial | None:
        wanted = resolved(settings, self._machine)
        return next((trial for tried, trial in self._trials if resolved(tried, self._machine) == wanted), None)

    def _decide(self) -> Found:
        """The best finalist; they are measured in turns, because the machine may have been slower in some trials."""
        works = sorted((pair for pair in self._trials if not pair[1].failure), key=lambda pair: pair[1].step_s)
        everywhere = (pair for pair in works if self._works_elsewhere(pair[0]))
        near: list[Settings] = []
        for settings, trial in everywhere:
            far = len(near) > 1 and trial.step_s > NEAR * self._known(near[0]).step_s
            if far or len(near) == FINALISTS:
                break
            near.append(settings)
        for settings in self._candidates.smaller(works[0][0]) if not near else ():
            if self._works_elsewhere(settings) and not self._try(settings).failure:
                near = [settings]
                break
        if not near:
            raise RunError("no settings that work in the measured phase work in the other phases of the recipe too")
        first_works = not self._known(self._first).failure and self._works_elsewhere(self._first)
        if first_works and self._first not in near:
            near.append(self._first)
        if near == [self._first]:
            return self._found(self._first, self._known(self._first).step_s, 1.0)
        seconds = race(len(near), partial(self._turn, near))
        best = min(range(len(near)), key=lambda i: (-len(seconds[i]), statistics.median(seconds[i])))
        gain = None
        if first_works:
            times_s = zip(seconds[near.index(self._first)], seconds[best], strict=False)
            gain = statistics.median(first_s / best_s for first_s, best_s in times_s)
        return self._found(near[best], statistics.median(seconds[best]), gain)

    def _found(self, settings: Settings, step_s: float, gain: float | None) -> Found:
        trial = self._known(settings)
        over = {
            reason: len({json.dumps(candidate) for candidate in settings}) for reason, settings in self._over.items()
        }
        return Found(settings, trial.rows_per_s * trial.step_s / step_s, gain, len(self._trials), over)

    def _turn(self, near: list[Settings], i: int, number: int) -> float:
        self._finals = len(near) * (ROUNDS + 1 - number) - i - 1
        return self._measure(near[i], number, math.inf).step_s


def race(count: int, measure: Callable[[int, int], float]) -> list[list[float]]:
    """Step times of each candidate, one for each round until it dropped out.

    A candidate drops out when its best time is longer than the best of all times NEAR. After the first round the factor
    is GIVE_UP, because other work on the machine may have disturbed a single round.

    Args:
        count: candidates.
        measure: measure(i, number) is the step time of candidate i in round `number`, from 1 on.
    """
    seconds: list[list[float]] = [[] for _ in range(count)]
    racing = list(range(count))
    for number in range(1, ROUNDS + 1):
        for i in racing:
            seconds[i].append(measure(i, number))
        best_s = [min(seconds_of_one) for seconds_of_one in seconds]
        bound_s = (GIVE_UP if number == 1 else NEAR) * min(best_s)
        racing = [i for i in racing if best_s[i] <= bound_s and seconds[i][-1] < math.inf] or racing
        if len(racing) == 1:
            break
    return seconds
