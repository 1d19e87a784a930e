"""Losses and gradient norms of the golden runs are those of the files: equal to the last bit on an equal machine."""

import math

import pytest

from tests.golden.runs import RUNS, STEPS, names_of, read_golden, run_now


@pytest.fixture(scope="module")
def found() -> dict:
    """What the runs give now; those of one rank share a process, those of two a horovodrun."""
    return {ranks: run_now(names_of(ranks)) for ranks in (1, 2)}


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
