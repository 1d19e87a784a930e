"""Matches the labels of two classifier heads by name, because checkpoints order labels differently."""

from typing import Any

from bert_horovod.interchange.architectures import SEVERAL_LABELS
from bert_horovod.interchange.suitability import named_class, named_labels


def head_rows(theirs: dict[str, Any], ours: dict[str, Any]) -> list[int] | None:
    """The rows of an existing head's weight, in the order of our labels; None if we cannot use the head.

    We can use a head that has the same architecture, problem and label names.

    Args:
        theirs: content of the config.json beside the head.
        ours: the task's configuration.
    """
    if named_class(theirs) != named_class(ours):
        return None
    numbers = ours.get("id2label", {})
    if ours.get("problem_type") == "regression":
        single = theirs.get("problem_type") == "regression" or theirs.get("num_labels") == 1
        return [0] if single or len(_names(theirs)) == 1 else None
    if (theirs.get("problem_type") == SEVERAL_LABELS) != (ours.get("problem_type") == SEVERAL_LABELS):
        return None
    names = _names(theirs)
    wanted_names = [numbers[str(number)] for number in range(len(numbers))]
    if sorted(names) != sorted(wanted_names):
        return None
    return [names.index(name) for name in wanted_names]


def _names(config: dict[str, Any]) -> list[str]:
    """The label names in the order of their numbers; empty if numbers are missing."""
    names = named_labels(config)
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(len(names)))):
        return []
    return [str(names[str(number)]) for number in range(len(names))]
