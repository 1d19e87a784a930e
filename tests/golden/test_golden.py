"""Losses and gradient norms of the golden runs are those of the files: equal to the last bit on an equal machine."""

import math

import pytest

from bert_horovod.collectives.world import World
from tests.golden.runs import RUNS, STEPS, by_name, names_of, read_golden, train_all


@pytest.fixture(scope="module")
def found(two_ranks) -> dict:
    """What the runs give now; all have one thread, as the tests have."""
    one = train_all(World(), names_of(1))
    two = two_ranks.run(train_all, names_of(2))[0].value
    return {1: by_name(one), 2: by_name(two)}


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_gives_the_numbers_of_its_file(name, found):
    rows, made_in = read_golden(name)
    now, surroundings = found[RUNS[name].ranks][name]
    assert [row[0] for row in rows] == list(range(1, STEPS + 1))
    if surroundings == made_in:
        assert now == rows
    for step, loss, norm in rows:
        for value, expected in zip(now[step - 1], (step, loss, norm), strict=True):
            assert math.isclose(value, expected, rel_tol=RUNS[name].band), (step, value, expected)
