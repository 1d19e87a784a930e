"""lab/gpu_kernels.py: what counts as wrong, and what it says where there is no GPU."""

from types import ModuleType

import numpy as np
import pytest

from tests.lab.scripts import load_script, run_here


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gpu_kernels")


def test_errors_are_relative_and_infinite_beside_nothing(script):
    expected = np.array([3.0, 4.0], np.float32)
    assert script.relative_error(expected, expected) == 0
    assert script.relative_error(np.zeros(2), expected) == 1
    assert script.relative_error(np.array([3.0, 4.5]), expected) == pytest.approx(0.1)
    assert script.relative_error(np.zeros(2), np.zeros(2)) == np.inf
    assert script.relative_error(expected, np.array([np.nan, 1.0])) == np.inf


def test_an_error_above_its_bound_or_none_at_all_is_out_of_bound(script):
    errors = {"a": (0.01, 0.02), "b": (0.04, 0.05), "c": (np.inf, 0.02), "d": (np.nan, 0.02)}
    found = script.out_of_bound(errors, 0.03)
    assert [each[0] for each in found] == ["b", "c", "d"]
    assert found[0] == "b: error 0.0400, bound 0.03, XLA's own 0.0500"


def test_without_a_gpu_it_says_so_and_fails():
    done = run_here("gpu_kernels")
    assert done.returncode == 1
    assert "the kernels cannot be used here: this rank has no GPU" in done.stderr
