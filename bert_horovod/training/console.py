"""The output of a run for people: lines, or a progress bar on a terminal, with the time left."""

import os
import sys
import time

from tqdm import tqdm

from bert_horovod.runtime import lasting_log
from bert_horovod.wording import duration

_BAR_COLUMNS = 10  # that the bar itself has at least; figures that leave it less room are left out


class Console:
    """Prints on rank 0 (`shown`); the run goes from `first_step`, the steps that it has done before, to `last_step`."""

    def __init__(self, shown: bool, first_step: int, last_step: int) -> None:
        self._shown = shown
        self._total = last_step
        self._has_bar = shown and sys.stderr.isatty()
        self._bar: tqdm | None = None  # until the first step is done, which compiles: others print lines before that
        self._figures: list[str] = []
        self.back_to(first_step)

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
            sys.stdout.flush()
        else:
            print(text, flush=True)

    def advance(self, step: int) -> None:
        """Count the steps up to `step` as done, and move the bar there."""
        if self._timed_from is None:
            self._timed_from = step, time.monotonic()
        if not self._has_bar:
            return
        if self._bar is None:
            self._bar = tqdm(total=self._total, initial=step, leave=False, bar_format=" ")
            lasting_log.begin_of_line = b"\r\x1b[K"  # its warnings take the bar's place
        self._draw(step)

    def show(self, step: int, figures: str) -> None:
        """Show a step's figures, the most important first, with two blanks between: beside the bar, or in a line."""
        self._figures = figures.split("  ")
        if self._bar is not None:
            self._draw(step, now=True)
            return
        self.say("  ".join([f"step {step}/{self._total}", figures, *self._left(step)]))

    def back_to(self, step: int) -> None:
        """Set the bar back to `step`, from which the run goes on."""
        self._timed_from: tuple[int, float] | None = None  # the first step, which compiles, and the time of its end
        if self._bar is not None:
            self._draw(step, now=True)

    def clear(self) -> None:
        """Take the bar off the terminal for a while, because something else is printed; the next step draws it."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            lasting_log.begin_of_line = b""
            self._bar.close()
            self._bar = None

    def _left(self, step: int) -> list[str]:
        """The time left by the pace since the first step; nothing before there is one."""
        if self._timed_from is None or step <= self._timed_from[0]:
            return []
        first, begun = self._timed_from
        return [f"{duration((time.monotonic() - begun) / (step - first) * (self._total - step))} left"]

    def _draw(self, step: int, now: bool = False) -> None:
        """Set the bar's text by the terminal's present width; draw it `now`, or when tqdm thinks that it is time."""
        bar = self._bar
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        bar.ncols = (columns or 80) - 3  # room for ^C: a bar that wraps would not be cleared
        position, left = f"step {step}/{self._total}", self._left(step)
        room = bar.ncols - len(position) - len(" || ") - _BAR_COLUMNS
        kept: list[str] = []
        for part in [*self._figures[:1], *left, *self._figures[1:]]:
            if len("  ".join([*kept, part])) > room:
                break
            kept.append(part)
        shown = [part for part in [*self._figures, *left] if part in kept]
        text = "  ".join(shown).replace("{", "{{").replace("}", "}}")
        bar.bar_format = f"{position} |{{bar}}| {text}"
        bar.update(step - bar.n)
        if now:
            bar.refresh()
