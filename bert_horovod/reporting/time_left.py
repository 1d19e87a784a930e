"""The time that a run still needs, from the pace of its newest lines of metrics."""

import statistics
from collections.abc import Sequence
from typing import Any

from bert_horovod.recipe.sections import Recipe

_LINES = 5  # the newest ones: one may be of an interval in which the run was resumed and compiled its step


def seconds_left(recipe: Recipe, steps: Sequence[dict[str, Any]], step: int, last_step: int) -> float | None:
    """Seconds from `step` to `last_step`; None until a line tells of steps without the first one, which compiles.

    Args:
        recipe: the run's.
        steps: lines of metrics about training steps, oldest first.

    A step of another phase is taken to need time in proportion to its tokens.
    """
    paces = [pace for line in steps[-2 * _LINES :] if (pace := _seconds_per_token(recipe, line)) is not None]
    if not paces:
        return None
    tokens, begin = 0, 0
    for phase in recipe.phase:
        first, last = max(begin, step), min(begin + phase.steps, last_step)
        tokens += max(0, last - first) * phase.global_batch * phase.sequence_length
        begin += phase.steps
    return statistics.median_low(paces[-_LINES:]) * tokens


def _seconds_per_token(recipe: Recipe, line: dict[str, Any]) -> float | None:
    """Seconds per position of a row; None for the first line of a phase, whose interval has the compilation."""
    begin = 0
    for number, phase in enumerate(recipe.phase):
        if line["step"] <= begin + phase.steps or number == len(recipe.phase) - 1:
            break
        begin += phase.steps
    if line["step"] - begin <= (recipe.execution.log_steps if number else 1):
        return None
    return line["step_s"] / (phase.global_batch * phase.sequence_length)
