"""Official scores of classification and regression, each over a whole set; arithmetic in float64.

Values are those of scikit-learn and scipy. An undefined score is 0: Matthews correlation if predictions or labels are
all of one class, Pearson and Spearman if either is constant.
"""

from collections.abc import Callable

import numpy as np


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of predictions that equal their labels."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 if no prediction and no label is of class 1.

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]))
    0.5
    """
    true_positives = np.count_nonzero((predictions == 1) & (labels == 1))
    positives = np.count_nonzero(predictions == 1) + np.count_nonzero(labels == 1)
    return float(2 * true_positives / positives) if positives else 0.0


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean F1 of the classes that are predicted or are labels.

    >>> round(macro_f1(np.array([0, 1, 1]), np.array([0, 1, 2])), 12)  # 1, 2 / 3 and 0
    0.555555555556
    """
    classes, places = np.unique(np.concatenate((predictions, labels)), return_inverse=True)
    predicted, actual = np.split(places, 2)
    hits = np.bincount(actual[predicted == actual], minlength=len(classes))
    return float(np.mean(2 * hits / np.bincount(places)))


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation of any number of classes (Gorodkin 2004); exact but for the last division.

    >>> matthews_correlation(np.array([1, 1, 0, 0]), np.array([1, 1, 1, 0]))  # 2 / sqrt(12)
    0.5773502691896258
    """
    classes = np.union1d(predictions, labels)
    predicted = [int(np.count_nonzero(predictions == label)) for label in classes]
    actual = [int(np.count_nonzero(labels == label)) for label in classes]
    correct, count = int(np.count_nonzero(predictions == labels)), len(labels)
    covariance = correct * count - sum(p * a for p, a in zip(predicted, actual, strict=True))
    spread = (count**2 - sum(p * p for p in predicted)) * (count**2 - sum(a * a for a in actual))
    return covariance / spread**0.5 if spread else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation coefficient."""
    x, y = (np.asarray(numbers, np.float64) for numbers in (predictions, labels))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, where equal values share their mean rank.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 100.0])), 12)
    1.0
    """
    return pearson(mean_ranks(predictions), mean_ranks(labels))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    metric.__name__: metric for metric in (accuracy, f1, macro_f1, matthews_correlation, pearson, spearman)
}


def score(predictions: np.ndarray, labels: np.ndarray, metrics: tuple[str, ...]) -> dict[str, float]:
    """The metrics of predictions: numbers of labels, or real numbers, [examples] both."""
    return {name: METRICS[name](predictions, labels) for name in metrics}


def confusion_matrix(predictions: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The number of examples by label and prediction: int64 [classes, classes].

    >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes)


def constant_like(scores: dict[str, float], labels: np.ndarray, classes: int) -> int | None:
    """The label that has exactly these scores if it is predicted for every example; None if no label has.

    For real numbers (classes 0) all constant predictions have correlation 0: the answer 0 stands for all of them.
    """
    for label in range(max(1, classes)):
        if score(np.full(len(labels), label), labels, tuple(scores)) == scores:
            return label
    return None


def mean_ranks(numbers: np.ndarray) -> np.ndarray:
    """The rank of each number, from 1; equal numbers share their mean rank."""
    _, place, counts = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
