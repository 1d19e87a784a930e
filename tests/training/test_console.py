"""What people see of a run: lines, or a bar."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest

from bert_horovod.training.console import Console
from tests.horovod_runs import PATIENCE_S, clean_environment

FIGURES = "loss 7.2500  mlm_accuracy 0.125  33.0 rows/s"


def test_without_a_terminal_a_plain_line_shows_step_loss_and_the_time_left(capsys, monkeypatch):
    clock = iter([100.0, 130.0])
    monkeypatch.setattr("bert_horovod.training.console.time.monotonic", lambda: next(clock))
    console = Console(True, 40, 100)
    console.advance(41)  # has compiled
    console.advance(50)
    console.show(50, FIGURES)  # 9 steps took 30 s, and 50 are left
    console.close()
    assert capsys.readouterr() == ("step 50/100  loss 7.2500  mlm_accuracy 0.125  33.0 rows/s  2 min 47 s left\n", "")


def test_the_first_step_which_compiles_gives_no_estimate(capsys):
    console = Console(True, 40, 100)
    console.advance(41)
    console.show(41, FIGURES)
    console.close()
    assert capsys.readouterr().out == "step 41/100  loss 7.2500  mlm_accuracy 0.125  33.0 rows/s\n"


def test_a_run_that_went_back_counts_from_there(capsys, monkeypatch):
    clock = iter([100.0, 200.0, 230.0])
    monkeypatch.setattr("bert_horovod.training.console.time.monotonic", lambda: next(clock))
    console = Console(True, 40, 100)
    console.advance(41)
    console.back_to(30)
    console.advance(31)
    console.show(41, FIGURES)  # 10 steps took 30 s, and 59 are left
    console.close()
    assert capsys.readouterr().out.endswith("  2 min 57 s left\n")


class Terminal:
    """A terminal of some columns with what a program wrote to it: text, CR, LF, up (ESC [ A) and clear (ESC [ K)."""

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
            elif part == "\x1b[A":
                self.row -= 1
            elif part == "\x1b[K":
                self.lines[self.row] = self.lines[self.row][: self.column]
            else:
                assert not part.startswith("\x1b"), repr(part)
                for letter in part:
                    self._write(letter)
            self.lines += [""] * (self.row + 1 - len(self.lines))

    def _write(self, letter: str) -> None:
        if self.column == self.columns:  # the line is full
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    @property
    def shown(self) -> list[str]:
        """The lines that are not blank."""
        return [line.rstrip() for line in self.lines if line.strip()]


ON_A_TERMINAL = """
import os
from bert_horovod.runtime.lasting_log import warn
from bert_horovod.training.console import Console
console = Console(True, 40, 100)
print("world: 1 rank")
console.say("starting")
for step in range(41, 51):
    console.advance(step)
console.show(50, "loss 7.2500  mlm_accuracy 0.125  33.0 rows/s")
os.write(2, b"<1>")
input()
console.say("a line above it")
warn("a warning")
console.show(51, "loss 7.2400  mlm_accuracy 0.125  33.0 rows/s")
os.write(2, b"<2>")
input()
console.say("at step 100")
console.close()
print("the end")
"""


@pytest.mark.full
@pytest.mark.parametrize("columns", [30, 80, 200])
def test_on_a_terminal_a_bar_is_below_all_lines_with_the_figures_that_fit_and_goes_at_the_end(columns):
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    attributes = termios.tcgetattr(other)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(other, termios.TCSANOW, attributes)
    terminal, shots, end = Terminal(columns), [], time.monotonic() + PATIENCE_S
    words = [sys.executable, "-c", ON_A_TERMINAL]
    with subprocess.Popen(words, stdin=other, stdout=other, stderr=other, env=clean_environment()) as process:
        os.close(other)
        text = ""
        with contextlib.suppress(OSError):  # EIO: the program has ended
            while time.monotonic() < end:
                text += os.read(main, 1 << 16).decode()
                before, mark, after = text.partition(f"<{len(shots) + 1}>")
                if mark:
                    terminal.feed(before)
                    shots.append(terminal.shown)
                    text = after
                    os.write(main, b"\n")
        terminal.feed(text)
    os.close(main)
    assert process.returncode == 0
    first, second = shots
    assert first[:2] == ["world: 1 rank", "starting"]
    assert second[:4] == ["world: 1 rank", "starting", "a line above it", "bert-horovod: a warning"]
    assert (len(first), len(second)) == (3, 5)
    assert terminal.shown == [*second[:4], "at step 100", "the end"]
    for number, shot in ((50, first), (51, second)):
        bar = shot[-1]
        assert len(bar) <= columns - 3  # room for ^C
        assert bar.startswith(f"step {number}/100 |")
        assert len(bar.split("|")[1]) >= 10
        known = {200: r"loss 7\.2[45]00  mlm_accuracy 0\.125  33\.0 rows/s  \d+ s left", 30: ""}
        known[80] = r"loss 7\.2[45]00  mlm_accuracy 0\.125  \d+ s left"
        assert re.fullmatch(known[columns], bar.split("|")[2].strip())


def test_other_ranks_print_nothing(capsys):
    console = Console(False, 0, 100)
    console.say("a line")
    console.show(50, FIGURES)
    console.close()
    assert capsys.readouterr() == ("", "")
