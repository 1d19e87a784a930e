"""Settings of [execution] in a race: each is measured once a round, in turn, by a `bench step` of its own."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bert_horovod.costs.derived import derive
from bert_horovod.errors import RunError
from bert_horovod.measuring.bench_child import in_turn, run_bench
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import execution_overrides

ROUNDS = 3
GIVE_UP = 1.25  # times the best step of the first round: slower settings are not measured again, but the recipe's are

Settings = dict[str, Any]  # of [execution], by key


@dataclass(frozen=True)
class Machine:
    """The cores and GPUs of one host of the run, and the ranks that share them."""

    cores: int  # logical cores that this process may use
    physical_cores: int  # physical cores among these; fewer if a core runs two threads
    gpu: bool = False
    world_size: int = 1  # ranks
    local_size: int = 1  # of them on this host


def usual_settings(recipe: Recipe, phase: int, machine: Machine) -> list[Settings]:
    """The recipe's settings, as {}, and usual ones that differ from them in one thing each; at most seven in all."""
    execution, share = recipe.execution, -(-recipe.phase[phase].global_batch // machine.world_size)
    xla = execution.xla if execution.xla != "auto" else "layers" if machine.gpu else "elementwise"
    rows = min(execution.micro_batch, share)
    settings: list[Settings] = [{"micro_batch": count} for count in (min(2 * rows, share), -(-rows // 2))]
    settings += [{"xla": "elementwise" if xla == "layers" else "layers"}]
    settings += [{"recompute": "attention" if execution.recompute == "none" else "none"}]
    if not machine.gpu:
        settings += [{"threads": max(1, machine.physical_cores // machine.local_size)}]
    if machine.world_size > 1:
        settings += [{"bucket_bytes": "auto" if execution.bucket_bytes != "auto" else 16 << 20}]
    threads = execution.threads or max(1, machine.cores // machine.local_size)
    now = vars(execution) | {"micro_batch": rows, "threads": threads}
    return [{}] + [each for each in settings if any(now[key] != value for key, value in each.items())]


def longest_phase(recipe: Recipe) -> int:
    """The number of the phase that should take longest: steps times rows times FLOPs of a row."""

    def flops(number: int) -> float:
        phase = recipe.phase[number]
        return phase.steps * phase.global_batch * derive(recipe, phase, 1).flops_per_row

    return max(range(len(recipe.phase)), key=flops)


class BestSettings(NamedTuple):
    """The settings with the shortest step."""

    settings: Settings
    rows_per_s: float  # median over rounds
    gains: list[float]  # rows/s over those of the recipe's settings in the same round; empty: these do not work
    margin: float | None  # rows/s over those of the second best, the median over rounds; None: there is no second


def words_of(settings: Settings) -> str:
    """Settings in a few words."""
    return " ".join(f"{key}={value}" for key, value in settings.items()) or "the recipe as it is"


@dataclass(frozen=True)
class Race:
    """The contestants, and how they are measured.

    `launch` and `bench` are words of `launch`, if there are several ranks, and of `bench step`.
    """

    contestants: Sequence[Settings]
    phases: int  # of the recipe
    phase: int  # number of the phase that is measured
    launch: tuple[str, ...]
    bench: tuple[str, ...]
    steps: int
    limit_s: float  # of a measurement
    say: Callable[[str, int], None]  # is told of each measurement, with the number of those that are left at most

    def run(self) -> BestSettings:
        """Measure all in turn, in ROUNDS rounds; raises RunError if none works, KeyboardInterrupt for Ctrl-C."""
        first_round: dict[int, float] = {}
        left, last_failure = ROUNDS * len(self.contestants), ""

        def measure(number: int, turn: int) -> float:
            nonlocal left
            left -= 1
            if turn and self.contestants[number] and first_round[number] > GIVE_UP * min(first_round.values()):
                left -= ROUNDS - 1 - turn
                raise RunError(f"more than {GIVE_UP} times the best step")
            rows_per_s = self._rows_per_s(self.contestants[number], self.phase, self.steps)
            first_round.setdefault(number, 1 / rows_per_s)
            self.say(f"{words_of(self.contestants[number])}: {rows_per_s:.4g} rows/s", left)
            return rows_per_s

        def left_out(number: int, error: RunError) -> None:
            nonlocal left, last_failure
            left -= 0 if number in first_round else ROUNDS - 1
            last_failure = str(error)
            self.say(f"{words_of(self.contestants[number])}: left out: {last_failure}", left)

        rounds = in_turn(range(len(self.contestants)), ROUNDS, measure, left_out)
        order = sorted(rounds, key=lambda number: -statistics.median(rounds[number]))
        for place, number in enumerate(order):
            if self._works_elsewhere(self.contestants[number]):
                return self._best(rounds, number, order[place + 1 :])
        raise RunError(f"no settings work: {last_failure}")

    def _best(self, rounds: dict[int, list[float]], best: int, slower: list[int]) -> BestSettings:
        ratios = {
            number: [one / other for one, other in zip(rounds[best], rounds[number], strict=True)] for number in rounds
        }
        recipes = next((i for i, settings in enumerate(self.contestants) if not settings), -1)
        margin = statistics.median(ratios[slower[0]]) if slower else None
        return BestSettings(self.contestants[best], statistics.median(rounds[best]), ratios.get(recipes, []), margin)

    def _works_elsewhere(self, settings: Settings) -> bool:
        """Whether the other phases' steps, which may have longer rows, work with these settings too."""
        for phase in range(self.phases):
            if phase != self.phase:
                try:
                    self._rows_per_s(settings, phase, 1)
                except RunError as error:
                    self.say(f"{words_of(settings)}: left out: in phase {phase} {error}", 0)
                    return False
        return True

    def _rows_per_s(self, settings: Settings, phase: int, steps: int) -> float:
        words = ["bench", "step", "--json", "--communication", "on", "--warm_up", "1", "--steps", str(steps)]
        words += ["--phase", str(phase), *self.bench]
        words += [word for override in execution_overrides(settings) for word in ("--set", override)]
        return run_bench([*self.launch, *words], self.limit_s)["rows_per_s"]
