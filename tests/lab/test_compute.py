"""lab/compute.py and lab/rounds.py: contestants in turn."""

import os
import sys

import pytest

from bert_horovod.errors import RunError
from lab import compute
from lab.rounds import in_turn, logged, printed, ratio_of, started

ANSWERING = "import sys\nprint('a library talks')\nfor line in sys.stdin: print([2.0] * int(line), flush=True)"


@pytest.mark.full
def test_contestants_are_asked_over_pipes_and_one_that_dies_is_named_with_its_last_words(capsys):
    programs = {"talker": ANSWERING, "mortal": "raise SystemExit('no such processor')"}
    commands = [(name, [sys.executable, "-c", text], None) for name, text in programs.items()]
    with started(commands, lambda _: 1) as running:
        assert list(running) == ["talker"]
        assert running["talker"].ask(2) == [2.0, 2.0]
        assert running["talker"].first_s == 2.0
    assert "left out: mortal ended with 1: no such processor" in capsys.readouterr().err


@pytest.mark.full
def test_a_command_that_fails_is_told_with_its_last_words_or_its_log(tmp_path):
    fails = ["-c", "import os; raise SystemExit(os.environ['CUDA_VISIBLE_DEVICES'] + 'no such file')"]
    with pytest.raises(RunError, match=r"ended with 1: no such file$"):
        printed([sys.executable, *fails])
    with pytest.raises(RunError, match=r"ended with 1; see .*log; the same command goes on"):
        logged(fails, tmp_path / "log", min(os.sched_getaffinity(0)))
    assert (tmp_path / "log").read_text() == "no such file\n"


def test_each_is_measured_once_a_round_and_one_that_fails_is_left_out(capsys):
    order = []

    def measure(name: str, number: int) -> int:
        order.append(f"{name}{number}")
        if name == "b" and number:
            raise RunError("no more")
        return number

    assert in_turn("abc", 3, measure) == {"a": [0, 1, 2], "c": [0, 1, 2]}
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2"]
    told = capsys.readouterr().err
    assert "b: left out: no more" in told
    assert "c: round 3/3" in told


def test_a_ratio_is_of_rows_a_second_in_the_same_round():
    assert ratio_of([2.0, 20.0, 4.0], [1.0, 10.0, 1.0]) == 2.0
    recipes = next(compute.groups(compute.parse(["--xla", "off"])))
    seconds = {"off": [1.0, 10.0, 1.0], "model_garden": [2.0, 20.0, 4.0]}
    lines = compute.results(recipes, seconds, dict.fromkeys(seconds, (3.0, None)))
    assert lines[0]["model_garden"] == 2.0
    assert lines[0]["rows_per_s"] * lines[0]["step_s"] == lines[1]["rows_per_s"] * lines[1]["step_s"] == 16
    assert lines[1]["configuration"] == "Model Garden: 12 x 768, 16 rows x 128, bfloat16, adamw"
