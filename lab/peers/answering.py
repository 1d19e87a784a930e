"""How a contestant answers lab/rounds.py: seconds of as many steps as each line of standard input asks for."""

import json
import sys
import time
from collections.abc import Callable


def answer(step: Callable[[], float | None], clock: Callable[[], float] = time.perf_counter) -> None:
    """Run steps until standard input ends; the seconds of a step that tells how much it did are divided by that."""
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = clock()
            done = step() or 1
            seconds.append((clock() - started) / done)
        print(json.dumps(seconds), flush=True)
