"""Losses and gradient norms of the golden runs are those of the files: equal to the last bit on an equal machine."""

import math

import pytest

from bert_horovod.collectives.world import World
from tests.golden.runs import RUNS, STEPS, by_name, read_golden, train_all

MARKS = {"one_rank": (), "two_ranks": (), "float16": (), "xla_layers": pytest.mark.slow}  # full: all others


CHECKED = [("accumulated", pytest.mark.full), ("float16", pytest.mark.full), ("modernbert", pytest.mark.slow)]


@pytest.mark.parametrize(
    ("name", "replay_steps"),
    [
        *(pytest.param(name, 0, marks=MARKS.get(name, pytest.mark.full)) for name in RUNS),
        *(pytest.param(name, 1, marks=mark) for name, mark in CHECKED),
    ],
)
def test_a_golden_run_gives_the_numbers_of_its_file(name, replay_steps, two_ranks):
    rows, made_in = read_golden(name)
    alone = RUNS[name].ranks == 1  # all runs have one thread, as the tests have
    work = (train_all, [name], replay_steps)
    runs = train_all(World(), [name], replay_steps) if alone else two_ranks.run(*work)[0].value
    now, surroundings = by_name(runs)[name]
    assert [row[0] for row in rows] == list(range(1, STEPS + 1))
    if surroundings == made_in:
        assert now == rows
    for step, loss, norm in rows:
        for value, expected in zip(now[step - 1], (step, loss, norm), strict=True):
            assert math.isclose(value, expected, rel_tol=RUNS[name].band), (step, value, expected)
