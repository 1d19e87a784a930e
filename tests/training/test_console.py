"""What people see of a run: lines, or a bar."""

import pytest

from bert_horovod.training.console import Console, duration

FIGURES = "loss 7.2500  mlm_accuracy 0.125  33.0 rows/s"


def test_without_a_terminal_a_plain_line_shows_step_loss_and_the_time_left(capsys, monkeypatch):
    clock = iter([100.0, 130.0])
    monkeypatch.setattr("bert_horovod.training.console.time.monotonic", lambda: next(clock))
    console = Console(True, 40, 100)
    console.advance(49)
    console.advance(50)
    console.show(50, FIGURES)  # 10 of the 60 steps that were left took 30 s
    console.close()
    assert capsys.readouterr() == ("step 50/100  loss 7.2500  mlm_accuracy 0.125  33.0 rows/s  2 min 30 s left\n", "")


def test_a_run_that_went_back_counts_from_there(capsys, monkeypatch):
    clock = iter([100.0, 200.0, 230.0])
    monkeypatch.setattr("bert_horovod.training.console.time.monotonic", lambda: next(clock))
    console = Console(True, 40, 100)
    console.back_to(30)
    console.show(40, FIGURES)  # 10 steps took 30 s, and 60 are left
    console.close()
    assert capsys.readouterr().out.endswith("  3 min 00 s left\n")


def test_on_a_terminal_a_bar_shows_the_same(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    console = Console(True, 40, 100)
    console.advance(50)
    console.show(50, FIGURES)
    console.say("a line above it")
    console.close()
    shown = capsys.readouterr()
    assert "50/100" in shown.err
    assert "loss 7.2500" in shown.err
    assert "a line above it\n" in shown.out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (41.6, "42 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 00 h"),
        (273600, "3 d 04 h"),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_other_ranks_print_nothing(capsys):
    console = Console(False, 0, 100)
    console.say("a line")
    console.show(50, FIGURES)
    console.close()
    assert capsys.readouterr() == ("", "")
