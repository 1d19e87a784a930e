"""The labels of a classifier's head, matched by name: their order is no standard."""

from typing import Any


def head_rows(theirs: dict[str, Any], ours: dict[str, Any]) -> list[int] | None:
    """Which outputs of a head that is there make one of ours, in our order; None where it cannot serve.

    A head serves if it is of the same architecture and problem, and has the same names of labels.

    Args:
        theirs: the config.json beside the head.
        ours: what the task's configuration says.
    """
    if theirs.get("architectures") != ours["architectures"]:
        return None
    numbers = ours.get("id2label", {})
    if ours.get("problem_type") == "regression":
        single = theirs.get("problem_type") == "regression" or theirs.get("num_labels") == 1
        return [0] if single or len(_names(theirs)) == 1 else None
    names = _names(theirs)
    wanted = [numbers[str(number)] for number in range(len(numbers))]
    if sorted(names) != sorted(wanted):
        return None
    return [names.index(name) for name in wanted]


def _names(config: dict[str, Any]) -> list[str]:
    """The names of the labels by number; none where config.json has none, or has them in no order."""
    found = config.get("id2label")
    if not isinstance(found, dict) or sorted(map(str, found)) != sorted(map(str, range(len(found)))):
        return []
    return [str(found[str(number)]) for number in range(len(found))]
