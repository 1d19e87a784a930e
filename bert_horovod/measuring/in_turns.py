"""Contestants are measured in turn, in rounds, so that they meet the same load; figures are medians over rounds."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from bert_horovod.errors import RunError

Key, Figure = TypeVar("Key"), TypeVar("Figure")


def in_turn(
    contestants: Iterable[Key],
    rounds: int,
    measure: Callable[[Key, int], Figure],
    left_out: Callable[[Key, RunError], None],
) -> dict[Key, list[Figure]]:
    """Measure each contestant once a round, one after another.

    Args:
        contestants: what is handed to `measure`, with the round's number from 0 on.
        rounds: at least 1.
        measure: a figure of one round; where it raises RunError, the contestant is left out from then on.
        left_out: is told so, with the error.

    Returns:
        The figures of each contestant that took part in all rounds.
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
