"""Official scores, each over a whole set; arithmetic in float64.

Values of classification and regression are those of scikit-learn and scipy. An undefined score is 0: Matthews
correlation if predictions or labels are all of one class, Pearson and Spearman if either is constant.

Values of texts with any number of labels are those of scikit-learn, F1 with zero_division=0. Means of average precision
and of ROC AUC are over the labels for which these are defined: some examples have the label, and for ROC AUC some have
not.

Scores of entities are equal to those of seqeval 1.2.2: precision, recall and F1, by its default and its strict rules.
An entity is right if its type, its first and its last word are. A score without a denominator is 0.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bert_horovod.corpus.reading.tag_schemes import Entity, entities, strict_entities


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
    alike: Sequence[int] = range(max(1, classes))
    if classes > 2 and "accuracy" in scores:  # labels of one share have equal scores: of thousands one is tried
        shares = np.bincount(labels, minlength=classes) / len(labels)
        alike = np.flatnonzero(shares == scores["accuracy"]).tolist()[:1]
    for label in alike:
        if score(np.full(len(labels), label), labels, tuple(scores)) == scores:
            return label
    return None


def mean_ranks(numbers: np.ndarray) -> np.ndarray:
    """The rank of each number, from 1; equal numbers share their mean rank."""
    _, place, counts = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


_PLACES = (1, 3, 5)  # k of precision at k
_SCORES = ("micro_f1", "macro_f1", "micro_precision", "micro_recall", "exact_match", "hamming_loss")
_RANKINGS = ("macro_average_precision", "micro_roc_auc", "macro_roc_auc")


def score_names(labels: int, chosen: bool) -> tuple[str, ...]:
    """The names of the scores for a number of labels, the one that decides first; `chosen`: with the threshold."""
    places = tuple(f"precision_at_{k}" for k in _PLACES if k <= labels)
    return (*_SCORES, *places, *_RANKINGS, *(("threshold",) if chosen else ()))


def multilabel_scores(probabilities: np.ndarray, truth: np.ndarray, threshold: float | None) -> dict[str, float]:
    """All scores, by the names of score_names, of probabilities, float64 [examples, labels], and the truth, 1 or 0.

    A label is predicted from the probability `threshold` on; None: the threshold with the best micro F1.
    """
    truth, chosen = np.asarray(truth, bool), {}
    if threshold is None:
        threshold = best_threshold(probabilities, truth)
        chosen = {"threshold": threshold}
    return at_threshold(probabilities >= threshold, truth) | threshold_free_scores(probabilities, truth) | chosen


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


def threshold_free_scores(probabilities: np.ndarray, truth: np.ndarray) -> dict[str, float]:
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


Found = set[tuple[int, Entity]]  # with the number of the sentence


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str) -> dict[str, float]:
    """Micro averages over all entities of tags by sentence; those by the strict rules of a scheme begin with `strict_`.

    >>> scores = entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]], "IOB2")
    >>> scores["f1"], scores["strict_f1"]
    (0.5, 0.5)
    """
    strict = _of(predicted, scheme), _of(gold, scheme)
    return _shares(_of(predicted), _of(gold)) | {f"strict_{name}": value for name, value in _shares(*strict).items()}


def scores_by_type(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """The scores of each type by the default rules, and `support`, the number of its entities in `gold`."""
    found, right = _of(predicted), _of(gold)
    kinds = sorted({entity.type for _, entity in found | right})
    parts = {kind: [{pair for pair in pairs if pair[1].type == kind} for pairs in (found, right)] for kind in kinds}
    return {kind: _shares(*pairs) | {"support": len(pairs[1])} for kind, pairs in parts.items()}


def type_cells(by_type: dict[str, dict[str, float]]) -> list[list[str]]:
    """The scores of each type as the cells of a table."""
    names = ("precision", "recall", "f1")
    rows = [
        [kind, *(f"{scores[name]:.4f}" for name in names), f"{scores['support']:,}"] for kind, scores in by_type.items()
    ]
    return [["type", *names, "entities"], *rows]


def _of(sentences: Sequence[Sequence[str]], scheme: str | None = None) -> Found:
    return {
        (number, entity)
        for number, tags in enumerate(sentences)
        for entity in (entities(tags) if scheme is None else strict_entities(tags, scheme))
    }


def _shares(found: Found, right: Found) -> dict[str, float]:
    both = len(found & right)
    precision = both / len(found) if found else 0.0
    recall = both / len(right) if right else 0.0
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}
