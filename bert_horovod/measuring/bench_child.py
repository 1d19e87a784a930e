"""Measurements in processes of their own, which end when they end or this process does, even by SIGKILL.

So running out of memory is an answer, and a peak of memory is one measurement's.

Contestants are measured in turn, in rounds, so that they meet the same load; figures are medians over rounds.
"""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from bert_horovod.errors import RunError, UserError
from bert_horovod.runtime.children import end_with_parent, python_settings
from bert_horovod.runtime.host import OUT_OF_MEMORY

_ENDING_S = 20  # time for a launcher to end its ranks
# Messages for lack of memory: from the memory guard, TensorFlow, C++, Python, and a launcher whose process was killed.
_NO_MEMORY = re.compile(f"{OUT_OF_MEMORY}|ResourceExhausted|OOM when allocating|bad_alloc|MemoryError|SIGKILL")
_LAST_LINES = 5


class OutOfMemory(RunError):
    """The measurement had not enough memory."""


def run_bench(words: Sequence[str], limit_s: float | None = None) -> dict[str, Any]:
    """Run `bert-horovod WORDS`, a `bench step --json` or a `launch` of it; returns the JSON object that it prints.

    An exception in this process, such as KeyboardInterrupt, ends the child too.

    Raises:
        UserError: it refused what it was given.
        OutOfMemory: it had not enough memory.
        RunError: it failed for another reason, or took more than `limit_s` seconds.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "bert_horovod", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | python_settings(),
            start_new_session=True,  # Ctrl-C reaches this process only; it ends the child
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"took more than {limit_s:g} s") from error
        finally:
            _end(child)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().strip().splitlines())
    printed = [line for line in texts[0] if line.startswith("{")]
    last_lines = "\n  ".join(texts[1][-_LAST_LINES:])
    if child.returncode == 0 and printed:
        return json.loads(printed[-1])
    if child.returncode == UserError.exit_code:
        raise UserError(last_lines.partition("error: ")[2] or last_lines)
    if child.returncode == -signal.SIGKILL or any(map(_NO_MEMORY.search, texts[1])):
        raise OutOfMemory(f"{OUT_OF_MEMORY}: {last_lines}")
    raise RunError(f"ended with {child.returncode}: {last_lines}")


def _end(child: subprocess.Popen) -> None:
    """End a child that may still run; SIGTERM first, because a launcher then ends its ranks before itself."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_ENDING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


Key, Figure = TypeVar("Key"), TypeVar("Figure")


def in_turn(
    contestants: Iterable[Key],
    rounds: int,
    measure: Callable[[Key, int], Figure],
    left_out: Callable[[Key, RunError], None],
) -> dict[Key, list[Figure]]:
    """Measure each contestant once a round; the figures of each contestant that took part in all rounds.

    `measure` gets the round's number, from 0 on. A contestant of which it raises RunError is left out from then on, and
    `left_out` is told so.
    """
    figures: dict[Key, list[Figure]] = {contestant: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in list(figures):
            try:
                figures[contestant].append(measure(contestant, number))
            except RunError as error:
                left_out(contestant, error)
                del figures[contestant]
    return figures
