"""The answers of a text classifier or a regression: one function for evaluation, submissions and predictions."""

import json
import re
from typing import Any

import numpy as np

_BLANKS = re.compile("[\t\n\r]")  # blanks in a TSV field


def answers(logits: np.ndarray, labels: int) -> np.ndarray:
    """The answers, from the head's outputs.

    Args:
        logits: float32 [examples, outputs].
        labels: number of labels; 0: a real number is predicted.

    Returns:
        [examples]: int64 numbers of the likeliest labels, at a tie the first; or real numbers, float64, as files show
        them: the shortest decimals that stand for the float32 values.
    """
    return logits.argmax(axis=-1) if labels else np.array([float(str(logit)) for logit in logits[:, 0]])


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The probability of each label alone: float64 of the same shape, in float64."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))


def label_sets(probabilities: np.ndarray, labels: tuple[str, ...], threshold: float) -> list[list[str]]:
    """The names of each example's labels, those with at least `threshold` of probabilities [examples, labels]."""
    return [[labels[number] for number in np.flatnonzero(row)] for row in probabilities >= threshold]


def joined(names: list[str], separator: str) -> str:
    """Names of labels as a field of a table; a JSON list if a name would not be read back from the plain form."""
    plain = not any(separator in name or name.startswith("[") or name != name.strip() for name in names)
    plain = plain and not _BLANKS.search("".join([separator, *names]))
    return separator.join(names) if plain else json.dumps(names)


def answer_rows(logits: np.ndarray, labels: tuple[str, ...], separator: str, threshold: float) -> list[list[Any]]:
    """For a table: each example's labels in one field, then the probability of each label of all, to 6 decimals."""
    shares = sigmoid(logits)
    names = label_sets(shares, labels, threshold)
    return [[joined(each, separator), *row] for each, row in zip(names, shares.round(6).tolist(), strict=True)]


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax of logits [examples, labels]: float64 of the same shape, in float64."""
    shifted = logits.astype(np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
