"""A run with faults comes to the same end as one without, and the comparison can fail."""

import json

import pytest

from lab.cluster import why_not
from tests.lab.scripts import load_script, run_script


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_with_faults_ends_as_one_without(tmp_path):
    pytest.importorskip("horovod")
    if lacking := why_not():
        pytest.skip(lacking)
    done = run_script("soak", "--directory", tmp_path, "--minutes", 0.01, "--seed", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    *faults, end = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert 1 <= len(faults) <= load_script("soak").FAULTS
    assert end == {"run": 0, "problem": ""}
    again = run_script("soak", "--directory", tmp_path, "--table")
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_differences_are_found():
    soak = load_script("soak")
    expected = ([[("step", 1)], [("step", 2)]], {"model": b"1", "optimizer": b"2"})
    assert soak.differences(expected, expected) == []
    assert soak.differences(([[("step", 1)]], expected[1]), expected) == ["1 of 2 lines of metrics.jsonl"]
    assert soak.differences((expected[0], {"model": b"1", "optimizer": b"3"}), expected) == ["optimizer"]


@pytest.mark.parametrize(("loss", "differ"), [(2.0, []), (2.001, []), (2.1, ["losses"]), (None, ["losses"])])
def test_the_losses_of_a_run_that_a_host_has_left_may_differ_by_rounding(loss, differ):
    soak = load_script("soak")
    with_loss = [
        ([[("step", 1), ("loss", value)]], {"model": bytes(number)}) for number, value in enumerate((loss, 2.0))
    ]
    assert soak.differences(*with_loss, soak.TOLERANCE) == differ


def test_each_kind_of_fault_comes_as_often_in_each_round():
    soak = load_script("soak")
    size = sum(times for times, _ in soak.KINDS.values())
    rounds = [[soak.drawn(5, number * size + each) for each in range(size)] for number in range(3)]
    assert all(kinds.count(kind) == times for kinds in rounds for kind, (times, _) in soak.KINDS.items())
    assert rounds[0] != rounds[1]
