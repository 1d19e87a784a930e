"""The race of settings, on a table of measurements in place of a machine."""

import re

import pytest

from bert_horovod.errors import RunError
from bert_horovod.measuring import tuning
from bert_horovod.measuring.tuning import ROUNDS, Machine, Race, longest_phase, usual_settings
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.toys import recipe_of, toy_recipe


def settings_of(words: list[str]) -> dict[str, str]:
    """The last of --set for each key, as a measurement's command has them."""
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    return dict(re.match(r"execution\.(\w+)=\"?(\w+)\"?", each).groups() for each in overrides)


def race(monkeypatch, contestants: list[dict], rows_per_s, phases: int = 1, phase: int = 0) -> tuple[Race, list]:
    """A race whose measurements come from `rows_per_s(settings, phase)`; and the commands and reports so far."""
    asked: list = []

    def run_bench(words: list[str], limit_s: float) -> dict[str, float]:
        asked.append(words)
        return {"rows_per_s": rows_per_s(settings_of(words), int(words[words.index("--phase") + 1]))}

    monkeypatch.setattr(tuning, "run_bench", run_bench)
    return Race(contestants, phases, phase, (), ("--recipe", "r"), 5, 600.0, lambda *_: None), asked


def test_the_settings_with_the_best_median_win_with_their_margins(monkeypatch):
    noise = iter([1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.2])  # by turn

    def rows_per_s(settings: dict, phase: int) -> float:
        return next(noise) * {None: 10.0, "16": 12.0, "32": 11.0}[settings.get("micro_batch")]

    contest, asked = race(monkeypatch, [{}, {"micro_batch": 16}, {"micro_batch": 32}], rows_per_s)
    best = contest.run()
    assert best.settings == {"micro_batch": 16}
    assert best.rows_per_s == 12.0
    assert best.gains == pytest.approx([1.2, 12 / 11, 1.2])
    assert best.margin == pytest.approx(12 / 11)
    assert len(asked) == 3 * ROUNDS
    assert [settings_of(words) for words in asked[:3]] == [{}, {"micro_batch": "16"}, {"micro_batch": "32"}]


def test_slow_settings_and_those_that_fail_are_left_out(monkeypatch):
    def rows_per_s(settings: dict, phase: int) -> float:
        if settings.get("xla") == "layers":
            raise RunError("out of memory")
        return 5.0 if "threads" in settings else 10.0

    contest, asked = race(monkeypatch, [{"xla": "layers"}, {"threads": 1}, {"recompute": "layer"}], rows_per_s)
    best = contest.run()
    assert (best.settings, best.gains, best.margin) == ({"recompute": "layer"}, [], None)
    assert len(asked) == 1 + 1 + ROUNDS


def test_settings_must_work_in_the_other_phases(monkeypatch):
    def rows_per_s(settings: dict, phase: int) -> float:
        if phase == 1 and settings:
            raise RunError("out of memory")
        return 20.0 if settings else 10.0

    contest, asked = race(monkeypatch, [{}, {"micro_batch": 32}], rows_per_s, phases=2)
    assert contest.run().settings == {}
    assert [words[words.index("--phase") + 1] for words in asked[-2:]] == ["1", "1"]
    assert asked[-1][asked[-1].index("--steps") + 1] == "1"


def test_without_settings_that_work_the_last_failure_is_told(monkeypatch):
    def rows_per_s(settings: dict, phase: int) -> float:
        raise RunError("out of memory: much")

    with pytest.raises(RunError, match="no settings work: out of memory: much"):
        race(monkeypatch, [{}, {"micro_batch": 4}], rows_per_s)[0].run()


@pytest.mark.parametrize(
    ("execution", "machine", "expected"),
    [
        ({}, Machine(2, 2), [{"micro_batch": 16}, {"micro_batch": 4}, {"xla": "layers"}, {"recompute": "attention"}]),
        ({"micro_batch": 32}, Machine(4, 2), [{"micro_batch": 16}, {"xla": "layers"}, {"recompute": "attention"}]),
        (
            {"recompute": "layer", "bucket_bytes": "auto"},
            Machine(16, 16, gpu=True, world_size=2, local_size=2),
            [{"micro_batch": 16}, {"micro_batch": 4}, {"xla": "elementwise"}, {"recompute": "none"}],
        ),
    ],
)
def test_usual_settings_differ_from_the_recipes_in_one_thing_each(execution, machine, expected):
    recipe: Recipe = toy_recipe(execution={"micro_batch": 8, "xla": "auto", "threads": 0} | execution)
    expected = [{}, *expected]
    expected += [{"threads": 2}] if machine.cores == 4 else []
    expected += [{"bucket_bytes": 16 << 20}] if machine.world_size > 1 else []
    assert usual_settings(recipe, 0, machine) == expected


def test_the_longest_phase_is_measured():
    short = Phase(sequence_length=128, global_batch=256, steps=90)
    assert longest_phase(recipe_of(phase=(short, Phase(sequence_length=512, global_batch=256, steps=10)))) == 0
    assert longest_phase(recipe_from_table({"phase": [{"steps": 10}, {"steps": 20}]})) == 1
