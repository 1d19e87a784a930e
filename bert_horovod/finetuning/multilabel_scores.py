"""Scores of texts with any number of labels, each over a whole set; arithmetic in float64.

Values are those of scikit-learn, F1 with zero_division=0. Means of average precision and of ROC AUC are over the labels
for which these are defined: some examples have the label, and for ROC AUC some have not.
"""

import numpy as np

from bert_horovod.finetuning.scores import mean_ranks

_PLACES = (1, 3, 5)  # k of precision at k
_SCORES = ("micro_f1", "macro_f1", "micro_precision", "micro_recall", "exact_match", "hamming_loss")
_RANKINGS = ("macro_average_precision", "micro_roc_auc", "macro_roc_auc")


def score_names(labels: int, chosen: bool) -> tuple[str, ...]:
    """The names of the scores for a number of labels, the one that decides first; `chosen`: with the threshold."""
    places = tuple(f"precision_at_{k}" for k in _PLACES if k <= labels)
    return (*_SCORES, *places, *_RANKINGS, *(("threshold",) if chosen else ()))


def multilabel_scores(probabilities: np.ndarray, truth: np.ndarray, threshold: float | None) -> dict[str, float]:
    """All scores, by the names of score_names.

    Args:
        probabilities: float64 [examples, labels].
        truth: 1 or 0, whether an example has a label: [examples, labels].
        threshold: a label is predicted from this probability on; None: the threshold with the best micro F1.
    """
    truth, chosen = np.asarray(truth, bool), {}
    if threshold is None:
        threshold = best_threshold(probabilities, truth)
        chosen = {"threshold": threshold}
    return at_threshold(probabilities >= threshold, truth) | ranking_scores(probabilities, truth) | chosen


def at_threshold(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The scores of predicted labels: bool [examples, labels] both.

    >>> at_threshold(np.array([[True, False], [True, True]]), np.array([[True, False], [False, True]]))["micro_f1"]
    0.8
    """
    hits = np.count_nonzero(predicted & truth, axis=0)
    predictions, positives = (np.count_nonzero(each, axis=0) for each in (predicted, truth))
    return {
        "micro_f1": _share(2 * hits.sum(), predictions.sum() + positives.sum()),
        "macro_f1": float(np.mean(2 * hits / np.maximum(predictions + positives, 1))),
        "micro_precision": _share(hits.sum(), predictions.sum()),
        "micro_recall": _share(hits.sum(), positives.sum()),
        "exact_match": float(np.mean((predicted == truth).all(axis=1))),
        "hamming_loss": float(np.mean(predicted != truth)),
    }


def ranking_scores(probabilities: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The scores that need no threshold: precision at k, average precision, ROC AUC."""
    columns = list(zip(probabilities.T, truth.T, strict=True))
    areas = [roc_auc(*column) for column in columns if 0 < np.count_nonzero(column[1]) < len(truth)]
    precisions = [average_precision(*column) for column in columns if column[1].any()]
    return {
        **{f"precision_at_{k}": precision_at(k, probabilities, truth) for k in _PLACES if k <= truth.shape[1]},
        "macro_average_precision": float(np.mean(precisions)) if precisions else 0.0,
        "micro_roc_auc": roc_auc(probabilities.ravel(), truth.ravel()),
        "macro_roc_auc": float(np.mean(areas)) if areas else 0.0,
    }


def precision_at(k: int, probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The fraction of an example's k likeliest labels that it has, the mean over examples; at a tie the first labels.

    >>> precision_at(2, np.array([[0.9, 0.1, 0.5]]), np.array([[True, True, False]]))
    0.5
    """
    likeliest = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
    return float(np.mean(np.take_along_axis(truth, likeliest, axis=1)))


def average_precision(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The mean of the precision at each true example's probability, [examples] both; at least one example is true."""
    order = np.argsort(-probabilities, kind="stable")
    ends = _ends_of_ties(probabilities[order])
    hits = np.cumsum(truth[order])[ends]
    return float(np.sum(np.diff(hits, prepend=0) * hits / (ends + 1)) / hits[-1])


def roc_auc(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The probability that a true example is above a false one, where a tie counts half; 0 if one kind is missing."""
    positives = np.count_nonzero(truth)
    negatives = len(truth) - positives
    if not positives or not negatives:
        return 0.0
    above = np.sum(mean_ranks(probabilities)[np.asarray(truth, bool)]) - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def best_threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The threshold of all labels with the best micro F1; of several the highest. 0.5 if no example has a label.

    It lies in the middle between the probabilities of the last label that it gives and the first that it does not.
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    ranked, hits = probabilities.ravel()[order], np.cumsum(truth.ravel()[order])
    if not hits[-1]:
        return 0.5
    ends = _ends_of_ties(ranked)
    best = int(ends[np.argmax(2 * hits[ends] / (ends + 1 + hits[-1]))])
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)


def _ends_of_ties(ranked: np.ndarray) -> np.ndarray:
    """The last place of each run of equal numbers."""
    return np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0
