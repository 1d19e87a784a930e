"""Tune a recipe on this machine: each trial of the search is a command; its result is printed."""

import contextlib
import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.store import Store
from bert_horovod.measuring.tuning.candidates import Candidates, Machine, first_settings, resolved
from bert_horovod.measuring.tuning.prediction import Prediction
from bert_horovod.measuring.tuning.search import Found, Search
from bert_horovod.measuring.tuning.trials import TIME_IS_UP, Settings, Trial, run_trial
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.tuned import execution_overrides
from bert_horovod.training.console import duration


@dataclass(frozen=True)
class Question:
    """The recipe to tune, its data, the machine, and the limits."""

    recipe: Recipe  # with the overrides
    recipe_file: Path
    overrides: tuple[str, ...]  # of --set
    data_dir: Path
    index_dir: Path | None
    phase: int  # number of the phase that is measured
    machine: Machine
    host_flags: tuple[str, ...]  # of `launch`
    memory_bytes: int | None  # that a rank may take; None: unknown
    seconds: float  # of timed steps
    limit_s: float  # of a trial

    def command(self, settings: Settings, phase: int, bound_s: float) -> list[str]:
        """The arguments of `bert-horovod` for a trial."""
        words = ["bench", "throughput", "--recipe", str(self.recipe_file), "--data_dir", str(self.data_dir), "--json"]
        words += ["--index_dir", str(self.index_dir)] if self.index_dir else []
        for override in [*self.overrides, *execution_overrides(settings)]:
            words += ["--set", override]
        words += ["--phase", str(phase), "--seconds", str(self.seconds)]
        words += ["--give_up_above", repr(bound_s)] if bound_s < math.inf else []
        if self.memory_bytes is not None and not self.machine.capability:
            words += ["--memory", str(self.memory_bytes)]
        ranks = self.machine.world_size
        return words if ranks == 1 else ["launch", "-np", str(ranks), *self.host_flags, "--", *words]


def tune(question: Question, store: Store, say: Callable[[str], None]) -> Found:
    """Search for the quickest settings; calls `say` with a line for each trial.

    Raises RunError if no settings work; KeyboardInterrupt for Ctrl-C and SIGTERM, after the trial's processes ended.
    """
    recipe, machine, phase = question.recipe, question.machine, question.phase
    phases = range(len(recipe.phase))
    rows = [open_rows(store, recipe, i, "train", question.index_dir) for i in phases]
    slots = [(phase_rows.masked_slots, phase_rows.sequences) for phase_rows in rows]
    prediction = Prediction(recipe, phase, machine.world_size, slots, question.memory_bytes, machine.capability)
    trials = _Trials(question, say)

    def works_elsewhere(settings: Settings) -> bool:
        elsewhere = (trials.measure(settings, i, 0, 0.0) for i in phases if i != phase)
        return all(trial.failure in ("", TIME_IS_UP) for trial in elsewhere)

    search = Search(
        first_settings(recipe, machine),
        machine,
        Candidates(recipe, phase, machine, prediction.fits),
        prediction,
        lambda settings, number, bound_s: trials.measure(settings, phase, number, bound_s),
        works_elsewhere,
    )
    trials.count_left = search.left
    memory = "" if question.memory_bytes is None else f"; a rank may take {question.memory_bytes / 2**30:.2f} GiB"
    say(f"measuring phase {phase} on {machine.world_size} rank(s){memory}")
    with _terminated_as_interrupted():
        return search.run()


class _Trials:
    """Runs the trials of candidates, and tells of each."""

    def __init__(self, question: Question, say: Callable[[str], None]) -> None:
        self._question, self._say = question, say
        self._walls: list[float] = []
        self._measured: dict[str, Trial] = {}  # the same settings may be asked for again in another phase
        self.count_left: Callable[[], int] = lambda: 0  # how many trials may be left

    def measure(self, settings: Settings, phase: int, number: int, bound_s: float) -> Trial:
        """The trial of these settings in round `number`; it is run once."""
        question = self._question
        key = json.dumps([phase, number, resolved(settings, question.machine)], sort_keys=True)
        if key not in self._measured:
            trial = run_trial(question.command(settings, phase, bound_s), question.limit_s)
            self._measured[key] = trial
            self._walls.append(trial.wall_s)
            self._tell(settings, phase, number, trial)
        return self._measured[key]

    def _tell(self, settings: Settings, phase: int, number: int, trial: Trial) -> None:
        question = self._question
        first = first_settings(question.recipe, question.machine)
        changed = [f"{key}={value}" for key, value in settings.items() if value != first[key]]
        description = " ".join(changed) or "the recipe as it is"
        description += f", round {number}" if number else ""
        description += "" if phase == question.phase else f", phase {phase}"
        figures = trial.failure or f"{trial.rows_per_s:.4g} rows/s"
        left_s = self.count_left() * sum(self._walls) / len(self._walls)
        after = f"; at most {duration(left_s)} left" if left_s else ""
        self._say(f"{len(self._measured):3}  {description}: {figures} ({duration(trial.wall_s)}{after})")


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Inside this context SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    handler_before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler_before)
