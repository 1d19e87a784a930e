"""What people see of a run: lines, or a bar on a terminal, with the time left."""

import sys
import time

from tqdm import tqdm


class Console:
    """Prints for rank 0; the other ranks' prints nothing.

    Args:
        shown: whether anything is printed.
        first_step: of which the run has done so many.
        last_step: at which it ends.
    """

    def __init__(self, shown: bool, first_step: int, last_step: int) -> None:
        self._shown = shown
        self._total = last_step
        bar = shown and sys.stderr.isatty()
        self._bar = tqdm(total=last_step, initial=first_step, unit="step") if bar else None
        self._started = time.monotonic()
        self._first_step = first_step

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
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
        """Show figures of a step: beside the bar, or in a line with the time left."""
        if self._bar is not None:
            self._bar.set_postfix_str(figures)
            return
        elapsed_s = time.monotonic() - self._started
        left_s = elapsed_s / (step - self._first_step) * (self._total - step)
        self.say(f"step {step}/{self._total}  {figures}  {duration(left_s)} left")

    def back_to(self, step: int) -> None:
        """The run goes on from an earlier step."""
        if self._bar is not None:
            self._bar.n = step

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min, 3 d 04 h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600:02d} h"
