"""Weights of labels in the loss, so that rare labels count as much as frequent ones: objective.class_weights."""

import numpy as np

MOST = 100.0  # weight of a text that has a label, for any number of labels: rarer labels would make training unstable


def balanced(labels: np.ndarray, classes: int) -> tuple[float, ...]:
    """The weights of `classes` labels, from the labels of the train examples.

    Of one label a text: examples / (labels that occur * examples with the label), as scikit-learn's "balanced"; so the
    mean weight of an example is 1. Of any number of labels: examples without the label / examples with it, at most
    MOST, which is the pos_weight of torch's BCEWithLogitsLoss. A label without an example has weight 1.

    Args:
        labels: int32 [examples], or 1 and 0 [examples, labels].
        classes: number of labels.

    >>> balanced(np.array([0, 0, 0, 1]), 2)
    (0.6666666666666666, 2.0)
    >>> balanced(np.array([[1, 0], [0, 1], [0, 1]], np.uint8), 2)
    (2.0, 0.5)
    """
    if labels.ndim == 1:
        counts = np.bincount(labels, minlength=classes)
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        counts = np.count_nonzero(labels, axis=0)
        weights = np.minimum((len(labels) - counts) / np.maximum(counts, 1), MOST)
    return tuple(np.where(counts > 0, weights, 1.0).tolist())
