"""Three kills and their resumes, and that the comparison can fail."""

import pytest

from tests.lab.scripts import cells, load_script, run_script


@pytest.mark.slow
def test_a_run_that_was_killed_three_times_equals_one_that_was_not():
    pytest.importorskip("horovod")
    done = run_script("soak", "--kills", 3, "--steps", 120, "--seed", 515)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, verdict = done.stdout.splitlines()
    table = {name: dict(zip(cells(lines[0])[1:], numbers, strict=True)) for name, *numbers in map(cells, lines[1:])}
    for name in ("all ranks, save", "one rank, training", "horovodrun, save"):
        assert table[name]["kills"] == "1"
    assert table["all"]["kills"] == "3"
    assert table["all"]["inside a save"] >= "1"
    assert (table["all"]["damaged"], table["all"]["left behind"]) == ("0", "0")
    assert verdict == "differences from the undisturbed run: none"


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_what_ranks_keep_alone_survives_kills_too():
    pytest.importorskip("horovod")
    signs = ("optimizer.name=adamw", "exchange.method=onebit_adam", "exchange.dense=0.3")
    overrides = [word for setting in signs for word in ("--set", setting)]
    done = run_script("soak", "--kills", 3, "--steps", 120, "--seed", 515, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "differences from the undisturbed run: none"


def test_differences_are_found():
    soak = load_script("soak")
    expected = ([[("step", 1)], [("step", 2)]], {"model": b"1", "optimizer": b"2"})
    assert soak.differences(expected, expected) == []
    assert soak.differences(([[("step", 1)]], expected[1]), expected) == ["1 of 2 lines of metrics.jsonl"]
    assert soak.differences((expected[0], {"model": b"1", "optimizer": b"3"}), expected) == ["optimizer"]
