"""A TensorBoard trace of some optimizer steps (execution.profile_steps)."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf


class StepProfiler:
    """Traces the steps of a range into a directory; does nothing for an empty range.

    Args:
        directory: where TensorBoard looks; the trace goes to plugins/profile/ in it.
        steps: (first, last), counted from 1 as in metrics.jsonl, or ().
        say: prints a line for people.
    """

    def __init__(self, directory: Path, steps: tuple[int, ...], say: Callable[[str], None]) -> None:
        self._directory = directory
        self._first, self._last = steps or (1, 0)
        self._say = say
        self._begun = 0  # the step at which the open trace began; 0: none is open

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around optimizer step `number`: a step of the range is traced, and the last one writes the trace.

        The first step that is in the range opens the trace, so that a run resumed inside it traces the rest.
        """
        if not self._first <= number <= self._last:
            yield
            return
        if not self._begun:
            tf.profiler.experimental.start(str(self._directory))
            self._begun = number
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            yield
        if number == self._last:
            self.close(number)

    def close(self, number: int) -> None:
        """Write an open trace, which ends with step `number`."""
        if self._begun:
            begun, self._begun = self._begun, 0
            tf.profiler.experimental.stop()
            self._say(f"trace of steps {begun} to {number}: tensorboard --logdir {self._directory}, tab Profile")
