"""The learning rate at the borders of warm-up, hold and decay."""

import dataclasses
import math

import pytest

from bert_horovod.optimizers.schedule import SHAPES, learning_rate
from bert_horovod.recipe.settings import Phase


def rates(**settings):
    phase = Phase(learning_rate=0.5, **settings)
    return [learning_rate(phase, step) for step in range(1, phase.steps + 1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # T = 10, W = 2, C = 3: five steps of decay
        (
            {"steps": 10, "warmup": 0.2, "hold": 0.3},
            [0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1],
        ),
        ({"steps": 4, "hold": 0.5}, [0.5, 0.5, 0.5, 0.25]),
        ({"steps": 4, "decay_power": 0.5}, [0.5 * math.sqrt(left / 4) for left in (4, 3, 2, 1)]),
        ({"steps": 4, "end_learning_rate": 0.25}, [0.0625 * left for left in (8, 7, 6, 5)]),
        ({"steps": 4, "decay": "cosine"}, [0.25 * (1 + math.cos(math.pi * over / 4)) for over in (0, 1, 2, 3)]),
        (
            {"steps": 20, "warmup": 0.1, "hold": 0.4, "decay": "one_minus_sqrt", "end_learning_rate": 0.1},
            [0.25, *[0.5] * 9, *(0.1 + 0.4 * (1 - math.sqrt(tenths / 10)) for tenths in range(10))],
        ),
    ],
    ids=str,
)
def test_warmup_hold_and_decay(settings, expected):
    assert rates(**{"warmup": 0.0} | settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("warmup", "hold"), [(0.4, 0.6), (1.0, 0.0), (0.0, 1.0), (0.7, 0.3)])
def test_no_decay_is_left_when_warmup_and_hold_fill_the_phase(warmup, hold):
    schedule = rates(steps=10, warmup=warmup, hold=hold)
    assert schedule[-1] == 0.5
    assert all(0 < rate <= 0.5 for rate in schedule)


def test_phase_of_the_54_minute_recipe():
    phase = Phase(steps=3519, learning_rate=0.00675, warmup=0.4265, hold=0.2735)
    warmup_steps, hold_steps = 1500, 962  # floor(1500.85), floor(962.45)
    decay_steps = 3519 - 1500 - 962
    assert learning_rate(phase, 1) == pytest.approx(0.00675 / warmup_steps)
    assert learning_rate(phase, warmup_steps - 1) < 0.00675
    assert learning_rate(phase, warmup_steps) == 0.00675
    assert learning_rate(phase, warmup_steps + hold_steps) == 0.00675
    assert learning_rate(phase, warmup_steps + hold_steps + 1) == 0.00675  # the first step of decay
    assert learning_rate(phase, warmup_steps + hold_steps + 2) == pytest.approx(0.00675 * (1 - 1 / decay_steps))
    assert learning_rate(phase, 3519) == pytest.approx(0.00675 / decay_steps)


def test_fractions_are_taken_as_written():
    # In binary 0.29 * 100 is 28.999999999999996.
    phase = Phase(steps=100, learning_rate=1.0, warmup=0.29)
    assert learning_rate(phase, 28) < 1.0
    assert learning_rate(phase, 29) == 1.0


@pytest.mark.parametrize("step", [0, 11])
def test_step_outside_the_phase_is_refused(step):
    with pytest.raises(ValueError, match="1 to 10"):
        learning_rate(Phase(steps=10), step)


def test_each_shape_may_be_chosen_and_falls_from_the_peak():
    (decay,) = [entry for entry in dataclasses.fields(Phase) if entry.name == "decay"]
    assert set(decay.metadata["choices"]) == set(SHAPES)
    for shape in SHAPES:
        falling = rates(steps=8, warmup=0.0, decay=shape)
        assert falling[0] == pytest.approx(0.5, rel=1e-12)
        assert sorted(falling, reverse=True) == falling
        assert falling[-1] > 0
