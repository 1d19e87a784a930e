"""The search for settings, on tables of measurements in place of a machine."""

import itertools
import math
from collections.abc import Callable

import pytest

from bert_horovod.errors import RunError
from bert_horovod.measuring.tuning.candidates import (
    Candidates,
    Machine,
    first_settings,
    micro_batches,
    resolved,
)
from bert_horovod.measuring.tuning.prediction import Prediction, longest_phase
from bert_horovod.measuring.tuning.search import ROUNDS, Found, Search, race
from bert_horovod.measuring.tuning.trials import FAILED, Settings, Trial
from bert_horovod.recipe.sections import Execution, Numerics, Phase, Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runtime.memory_guard import OUT_OF_MEMORY
from tests.horovod_runs import PROJECT
from tests.toys import recipe_of

MINI = load_recipe(PROJECT / "run" / "recipes" / "bert-mini.toml")
BASE = load_recipe(PROJECT / "run" / "recipes" / "bert-base.toml", ["phase.0.global_batch=64"])
LAPTOP = Machine(cores=2, physical_cores=1)
GIB = float(1 << 30)


class Table:
    """A machine whose times are a function of the settings; what it measured is listed."""

    def __init__(self, recipe: Recipe, machine: Machine, step_s: Callable[[Settings], float], **options) -> None:
        self.recipe, self.machine, self.step_s = recipe, machine, step_s
        self.memory_bytes = options.get("memory_bytes")  # None: endless
        self.elsewhere = options.get("elsewhere", lambda settings: True)
        self.update = options.get("update", 0.2)  # its time, in micro-batches
        self.waits_s = options.get("waits_s", 0.0)  # for sums
        slots = [(20, 1)] * len(recipe.phase)
        self.prediction = Prediction(recipe, 0, machine.world_size, slots, self.memory_bytes, machine.capability)
        self.measured: list[Settings] = []
        self.turns: list[tuple[int, Settings]] = []

    def measure(self, settings: Settings, number: int, bound_s: float) -> Trial:
        settings = resolved(settings, self.machine)
        if number:
            self.turns.append((number, settings))
        else:
            assert settings not in self.measured
            self.measured.append(settings)
        seconds = self.step_s(settings)
        if isinstance(seconds, str):
            return Trial(failure=seconds, words="its last words")
        rows = self.recipe.phase[0].global_batch
        count = -(-rows // (self.machine.world_size * settings["micro_batch"]))
        part_s = (seconds - self.waits_s) / (count + self.update)
        return Trial(seconds, rows / seconds, part_s, self.update * part_s, self.waits_s)

    def search(self) -> Found:
        first = first_settings(self.recipe, self.machine)
        candidates = Candidates(self.recipe, 0, self.machine, self.prediction.fits)
        return Search(first, self.machine, candidates, self.prediction, self.measure, self.elsewhere).run()


def cpu_like(settings: Settings) -> float:
    """XLA likes large micro-batches, TensorFlow's own kernels small ones; a second thread of a core helps a little."""
    rows, xla = settings["micro_batch"], settings["xla"]
    seconds = {"off": 1.2, "elementwise": 1.0, "layers": 1.1}[xla]
    best = {"off": 8, "elementwise": 16, "layers": 64}[xla]
    seconds *= 1 + 0.06 * abs(math.log2(rows / best))
    seconds *= {"none": 1.0, "attention": 1.04, "layer": 1.3}[settings["recompute"]]
    return seconds * {1: 1.0, 2: 0.93}[settings["threads"]]


def grid(recipe: Recipe, machine: Machine) -> list[Settings]:
    rows = micro_batches(recipe, 0, machine.world_size)
    axes = (rows, ("elementwise", "layers", "off"), ("none", "attention", "layer"), (1, 2))
    names = ("micro_batch", "xla", "recompute", "threads")
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*axes)]


@pytest.mark.parametrize("recipe", [MINI, BASE])
@pytest.mark.parametrize("quickest", ["off", "elementwise", "layers"])
def test_what_is_found_is_within_3_percent_of_the_grids_best_in_a_quarter_of_its_time(recipe, quickest):
    def step_s(settings: Settings) -> float:
        return cpu_like(settings) * (0.7 if settings["xla"] == quickest else 1.0)

    table = Table(recipe, LAPTOP, step_s)
    chosen = table.search()
    cells = grid(recipe, LAPTOP)
    best_s = min(map(step_s, cells))
    assert step_s(resolved(chosen.settings, LAPTOP)) <= 1.03 * best_s
    spent = table.measured + [settings for _, settings in table.turns]
    assert len(spent) <= len(cells) / 4
    assert chosen.tried == len(table.measured)
    first = resolved(first_settings(recipe, LAPTOP), LAPTOP)
    assert chosen.gain == pytest.approx(step_s(first) / step_s(resolved(chosen.settings, LAPTOP)))
    assert chosen.rows_per_s == pytest.approx(recipe.phase[0].global_batch / step_s(resolved(chosen.settings, LAPTOP)))


def test_what_cannot_win_or_does_not_fit_is_not_measured():
    def step_s(settings: Settings) -> float | str:
        return cpu_like(settings) if table.prediction.fits(settings) else OUT_OF_MEMORY

    table = Table(BASE, LAPTOP, step_s, memory_bytes=6 * GIB)
    chosen = table.search()
    first, *others = table.measured
    assert first["micro_batch"] == BASE.execution.micro_batch  # as the recipe has it, whatever is expected
    assert others
    assert all(settings["recompute"] != "layer" for settings in others)  # a third more work
    assert all(table.prediction.fits(settings) for settings in others)
    assert set(chosen.passed_over) == {"do not fit into memory", "cannot win"}


def test_recomputation_is_tried_where_only_it_lets_a_larger_micro_batch_fit():
    def step_s(settings: Settings) -> float:
        return cpu_like(settings) / settings["micro_batch"]  # the larger the better, by far

    recipe = recipe_of(
        model=BASE.model, phase=(Phase(sequence_length=512, global_batch=64),), execution=Execution(micro_batch=1)
    )
    table = Table(recipe, LAPTOP, step_s, memory_bytes=7 * GIB, update=4.0)  # and so is adding up, to memory
    settings = table.search().settings
    assert settings["recompute"] != "none"
    assert not table.prediction.fits(settings | {"recompute": "none"})


def test_running_out_of_memory_is_an_answer():
    def step_s(settings: Settings) -> float | str:
        return OUT_OF_MEMORY if settings["micro_batch"] > 32 else cpu_like(settings) / settings["micro_batch"]

    chosen = Table(MINI, LAPTOP, step_s).search()
    assert chosen.settings["micro_batch"] == 32
    assert chosen.gain is None  # the recipe as it was, at 64, gave no rows/s


def test_a_candidate_that_crashes_is_passed_over():
    def step_s(settings: Settings) -> float | str:
        return FAILED if settings["xla"] == "layers" else cpu_like(settings)

    assert Table(MINI, LAPTOP, step_s).search().settings["xla"] == "auto"  # elementwise, on a CPU


@pytest.mark.parametrize("failure", [FAILED, OUT_OF_MEMORY])
def test_where_nothing_works_the_last_words_are_told(failure):
    table = Table(MINI, LAPTOP, lambda settings: failure)
    with pytest.raises(RunError, match=f"no settings work: the last try {failure}: its last words"):
        table.search()
    assert (len(table.measured) == 1) == (failure == FAILED)  # a crash has nothing to do with the micro-batch


def test_settings_that_do_not_work_in_another_phase_are_left_out():
    table = Table(BASE, LAPTOP, cpu_like, elsewhere=lambda settings: settings["micro_batch"] <= 4)
    settings = table.search().settings
    assert settings["micro_batch"] == 4
    table = Table(BASE, LAPTOP, cpu_like, elsewhere=lambda settings: False)
    with pytest.raises(RunError, match="work in the other phases"):
        table.search()


def test_a_recipe_that_is_best_already_stays_as_it_is():
    execution = Execution(micro_batch=16, xla="elementwise", threads=2)
    recipe = recipe_of(model=MINI.model, phase=MINI.phase, execution=execution)
    chosen = Table(recipe, LAPTOP, cpu_like).search()
    assert chosen.settings == {"micro_batch": 16, "xla": "elementwise", "recompute": "none", "threads": 2}
    assert chosen.gain == 1


def test_communication_is_tried_only_where_sums_are_waited_for():
    two = Machine(cores=2, physical_cores=2, world_size=2)
    recipe = recipe_of(model=MINI.model, phase=MINI.phase, numerics=Numerics(wire="float16"))

    def step_s(settings: Settings) -> float:
        return 1.0 if settings["bucket_bytes"] == 4 << 20 and settings["reduction"] == "two_step" else 1.1

    still = Table(recipe, two, step_s)
    still.search()
    assert {each["bucket_bytes"] for each in still.measured} == {"auto"}
    waiting = Table(recipe, two, step_s, waits_s=0.1)
    settings = waiting.search().settings
    assert (settings["bucket_bytes"], settings["reduction"]) == (4 << 20, "two_step")


@pytest.mark.parametrize(
    ("batch", "ranks", "expected"), [(128, 1, [1, 2, 4, 8, 16, 32, 64, 128]), (100, 3, [1, 2, 3, 5, 9, 17, 34])]
)
def test_micro_batches_share_the_global_batch_with_little_padding(batch, ranks, expected):
    assert micro_batches(recipe_of(phase=(Phase(global_batch=batch),)), 0, ranks) == expected


def test_finalists_are_measured_in_turns_and_leave_where_they_fall_behind():
    times = {(0, 1): 1.2, (0, 2): 1.0, (0, 3): 1.0, (1, 1): 1.2, (1, 2): 1.2, (3, 1): 1.3}
    times |= {(2, 1): 1.01, (2, 2): 1.3, (2, 3): 1.01}
    asked: list[tuple[int, int]] = []

    def measure(i: int, number: int) -> float:
        asked.append((i, number))
        return times[i, number]

    assert race(4, measure) == [[1.2, 1.0, 1.0], [1.2, 1.2], [1.01, 1.3, 1.01], [1.3]]
    assert asked == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (0, 3), (2, 3)]
    assert ROUNDS == 3


def test_one_that_fails_in_its_turn_leaves():
    assert race(2, lambda i, number: math.inf if i == 0 else 1.0) == [[math.inf], [1.0]]


def test_the_phase_that_takes_longest_is_measured():
    assert longest_phase(load_recipe(PROJECT / "run" / "recipes" / "bert-base.toml")) == 0
    assert longest_phase(recipe_of(phase=(Phase(steps=10), Phase(steps=9, sequence_length=512)))) == 1
