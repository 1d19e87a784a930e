"""The output of a run for people: lines, or a progress bar on a terminal, with the time left."""

import sys
import time

from tqdm import tqdm


class Console:
    """Prints on rank 0; on the other ranks it prints nothing.

    Args:
        shown: whether anything is printed.
        first_step: number of steps that the run has done before it starts or resumes.
        last_step: the step at which the run ends.
    """

    def __init__(self, shown: bool, first_step: int, last_step: int) -> None:
        self._shown = shown
        self._total = last_step
        bar = shown and sys.stderr.isatty()
        self._bar = tqdm(total=last_step, initial=first_step, unit="step") if bar else None
        self._started = time.monotonic()
        self._first_step = first_step

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def advance(self, step: int) -> None:
        """Move the bar to `step`."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def show(self, step: int, figures: str) -> None:
        """Show a step's figures: beside the bar, or without a bar in a line with the time left."""
        if self._bar is not None:
            self._bar.set_postfix_str(figures)
            return
        elapsed_s = time.monotonic() - self._started
        left_s = elapsed_s / (step - self._first_step) * (self._total - step)
        self.say(f"step {step}/{self._total}  {figures}  {duration(left_s)} left")

    def back_to(self, step: int) -> None:
        """Set the bar back to `step`, from which the run goes on."""
        self._started, self._first_step = time.monotonic(), step
        if self._bar is not None:
            self._bar.n = step

    def close(self) -> None:
        """Close the bar; it stays on the terminal."""
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min, 3 d 04 h.

    >>> [duration(seconds) for seconds in (42, 185, 7800, 273600)]
    ['42 s', '3 min 05 s', '2 h 10 min', '3 d 04 h']
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600:02d} h"
