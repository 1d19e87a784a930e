"""lab/gpu_kernels.py: errors, their bounds, and a kernel that is broken on purpose."""

import math

import numpy as np
import pytest

from bert_horovod.model.gpu_kernels import catalogue
from lab import gpu_kernels
from lab.gpu_kernels import BROKEN, breaking, out_of_bound, relative_error
from tests.lab.scripts import run_here


def test_errors_are_relative_and_infinite_beside_nothing():
    expected = np.array([3.0, 4.0], np.float32)
    assert relative_error(expected, expected) == 0
    assert relative_error(np.array([3.0, 4.5]), expected) == pytest.approx(0.1)
    assert relative_error(np.zeros(2), np.zeros(2)) == np.inf
    assert relative_error(expected, np.array([np.nan, 1.0])) == np.inf


def test_an_error_is_bounded_by_twice_xlas_own_and_by_a_tenth():
    within = {"a": (0.0399, 0.02), "b": (0.0999, 0.06), "c": (0.0, 0.01)}
    beyond = {"d": (0.0401, 0.02), "e": (0.11, 0.06), "f": (np.inf, 0.02), "g": (np.nan, 0.02), "h": (0.01, np.nan)}
    found = out_of_bound(within | beyond)
    assert [each[0] for each in found] == ["f", "g", "e", "d", "h"]
    assert found[3] == "d: error 0.0401, bound 0.0400, XLA's own 0.0200"


def test_every_text_of_the_broken_kernel_is_another_and_others_are_not():
    texts = catalogue.all_texts()
    before = [text.read("f16") for text in texts]
    with breaking(*BROKEN):
        changed = {text.kernel for text, was in zip(texts, before, strict=True) if text.read("f16") != was}
    assert changed == {BROKEN[0]}
    assert [text.read("f16") for text in texts] == before


def test_a_break_that_nobody_notices_is_a_problem(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "compare", lambda case: {"output": (0.0, 0.0)})
    _, problems = gpu_kernels.broken(math.inf)
    assert "was not noticed: the bounds are too wide" in problems[0]


def test_without_a_gpu_it_says_so_and_fails():
    done = run_here("gpu_kernels")
    assert done.returncode == 1
    assert "the kernels cannot be used here: this rank has no GPU" in done.stderr
