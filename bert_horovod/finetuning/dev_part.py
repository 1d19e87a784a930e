"""Divide labelled examples into a train part and a dev part: seeded, and with the labels' shares in both."""

from collections import Counter
from typing import Any

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledTexts, LabelSets
from bert_horovod.errors import UserError

_SEED = 0  # the same for all runs, so that runs with different data.seed have one dev set


def divided(examples: LabelledTexts, fraction: float) -> tuple[LabelledTexts, LabelledTexts]:
    """A file's examples as train and dev part, each in the file's order.

    Each label's share in the dev part is its share of all examples, to rounding. An example with several labels is
    counted for its rarest label. An example that is alone with its label stays in the train part.

    Raises:
        UserError: `fraction` is not above 0 and at most 0.5, or there are too few examples.
    """
    if not 0 < fraction <= 0.5:
        raise UserError(f"--dev_fraction {fraction:g}: expected more than 0 and at most 0.5, as in 0.1")
    numbers = _dev_numbers(_groups(examples), fraction)
    if not len(numbers):
        raise UserError(
            f"--dev_fraction {fraction:g} of {len(examples.labels):,} examples leaves no dev example; expected more "
            "examples, a greater fraction, or --dev_file"
        )
    in_dev = np.zeros(len(examples.labels), bool)
    in_dev[numbers] = True
    return _part(examples, np.flatnonzero(~in_dev)), _part(examples, np.flatnonzero(in_dev))


def _groups(examples: LabelledTexts) -> list[Any]:
    """The label by which each example is divided; real numbers are all of one group."""
    labels = examples.labels
    if isinstance(labels, LabelSets):
        counts = Counter(label for numbers in labels for label in numbers)
        return [min(numbers, key=lambda label: (counts[label], label), default=-1) for numbers in labels]
    return [0 if isinstance(label, float) else label for label in labels]


def _dev_numbers(groups: list[Any], fraction: float) -> np.ndarray:
    """The numbers of the dev examples, in no order: of each group its share, by largest remainders."""
    members: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    exact = {group: fraction * len(numbers) for group, numbers in members.items()}
    taken = {group: int(share) for group, share in exact.items()}
    more = round(fraction * len(groups)) - sum(taken.values())
    by_remainder = sorted(members, key=lambda group: (taken[group] - exact[group], str(group)))
    for group in [group for group in by_remainder if taken[group] + 1 < len(members[group])][: max(more, 0)]:
        taken[group] += 1
    random = np.random.default_rng(_SEED)
    parts = [random.permutation(members[group])[: taken[group]] for group in sorted(members, key=str)]
    return np.concatenate(parts)


def _part(examples: LabelledTexts, numbers: np.ndarray) -> LabelledTexts:
    labels: Any = [examples.labels[number] for number in numbers]
    if isinstance(examples.labels, LabelSets):
        labels = LabelSets(labels, examples.labels.classes)
    return LabelledTexts(tuple([side[number] for number in numbers] for side in examples.texts), labels)
