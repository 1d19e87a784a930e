"""Scores of any number of labels: those of scikit-learn on GoEmotions, and NumPy's by definition."""

import gzip
import json

import numpy as np
import pytest

from bert_horovod.finetuning.scores import (
    average_precision,
    best_threshold,
    multilabel_scores,
    precision_at,
    roc_auc,
    score_names,
)

EXACT = 1e-14  # relative


def toy(examples: int = 30, labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and which labels the examples have."""
    random = np.random.default_rng(4)
    truth = random.random((examples, labels)) < 0.3
    return (random.random(truth.shape) * 0.7 + truth * 0.3).round(1), truth


def test_scores_of_goemotions_are_those_of_scikit_learn(shared_data):
    directory = shared_data / "finetune" / "multilabel" / "goemotions"
    expected = json.loads((directory / "expected-scores.json").read_text())
    with gzip.open(directory / "dev-probabilities.tsv.gz", "rt") as file:
        probabilities = np.loadtxt(file, skiprows=1)
    truth = np.zeros(probabilities.shape, bool)
    with gzip.open(directory / "dev.tsv.gz", "rt", encoding="utf-8") as file:
        for row, line in zip(truth, file, strict=True):
            row[[int(number) for number in line.rstrip("\n").split("\t")[1].split(",")]] = True
    assert len(truth) == expected.pop("examples")
    scores = multilabel_scores(probabilities, truth, expected.pop("threshold"))
    assert tuple(scores) == score_names(28, chosen=False)
    assert len(expected) == 9
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=EXACT, abs=0), name


@pytest.mark.parametrize("k", [1, 3, 5])
def test_precision_at_k_is_the_share_of_true_labels_among_the_likeliest(k):
    probabilities, truth = toy()
    shares = []
    for row, has in zip(probabilities, truth, strict=True):
        likeliest = sorted(range(len(row)), key=lambda label: (-row[label], label))[:k]
        shares.append(sum(has[label] for label in likeliest) / k)
    assert precision_at(k, probabilities, truth) == pytest.approx(np.mean(shares), rel=EXACT)


def test_average_precision_and_roc_auc_are_their_definitions_with_ties():
    scores, truth = (array.ravel() for array in toy())
    positives, negatives = scores[truth], scores[~truth]
    above = (positives[:, None] > negatives).mean() + (positives[:, None] == negatives).mean() / 2
    assert roc_auc(scores, truth) == pytest.approx(above, rel=1e-12)
    total, recall = 0.0, 0.0
    for threshold in np.unique(scores)[::-1]:
        given = scores >= threshold
        new_recall = (given & truth).sum() / truth.sum()
        total += (new_recall - recall) * (given & truth).sum() / given.sum()
        recall = new_recall
    assert average_precision(scores, truth) == pytest.approx(total, rel=1e-12)


def test_the_best_threshold_has_the_best_micro_f1_of_all():
    probabilities, truth = toy()

    def micro_f1(threshold: float) -> float:
        given = probabilities >= threshold
        return 2 * (given & truth).sum() / (given.sum() + truth.sum())

    best = best_threshold(probabilities, truth)
    assert micro_f1(best) == max(micro_f1(threshold) for threshold in np.linspace(0, 1.1, 1000))
    assert best not in probabilities  # between two, so that rounding changes nothing
    scores = multilabel_scores(probabilities, truth, None)
    assert scores["threshold"] == best
    assert scores["micro_f1"] == pytest.approx(micro_f1(best))
    assert tuple(scores) == score_names(7, chosen=True)


def test_what_is_undefined_is_left_out_of_means_or_0():
    probabilities = np.array([[0.9, 0.2, 0.4], [0.1, 0.3, 0.6]])
    truth = np.array([[True, False, True], [False, False, True]])  # no example has label 1, each has label 2
    scores = multilabel_scores(probabilities, truth, 0.5)
    assert (scores["macro_average_precision"], scores["macro_roc_auc"]) == (1, 1)
    nothing = multilabel_scores(probabilities, np.zeros((2, 3), bool), 0.95)
    assert {nothing[name] for name in ("micro_f1", "macro_f1", "micro_recall", "micro_roc_auc")} == {0}
    assert best_threshold(probabilities, np.zeros((2, 3), bool)) == 0.5
    assert "precision_at_3" not in score_names(2, chosen=False)
