"""Official scores: those of scikit-learn and scipy on the same predictions, over a whole set."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.finetuning.scores import METRICS, confusion_matrix, constant_like, score

NAMES = {"accuracy": "accuracy", "f1": "f1 of class 1", "matthews_correlation": "matthews_correlation"}
NAMES |= {"pearson": "pearson", "spearman": "spearman", "macro_f1": "macro f1"}
EXACT = 1e-14  # relative


def column(path: Path, number: int, skip: int) -> np.ndarray:
    lines = gzip.decompress(path.read_bytes()).decode("utf-8-sig").splitlines()[skip:]
    return np.array([float(line.split("\t")[number]) for line in lines])


@pytest.mark.parametrize(("task", "place", "skip"), [("CoLA", 1, 0), ("MRPC", 0, 1), ("SST-2", 1, 1), ("STS-B", -1, 1)])
def test_scores_are_those_of_scikit_learn_and_scipy(shared_data, task, place, skip):
    glue = shared_data / "finetune" / "glue"
    expected = json.loads((glue / "metrics" / "expected.json").read_text())
    labels = column(glue / task / "dev.tsv.gz", place, skip)
    predicted = column(glue / "metrics" / f"{task}-predictions.tsv.gz", 1, 1)
    assert len(labels) == len(predicted) == expected[task]["examples"]
    compared = 0
    for name, metric in METRICS.items():
        for predictions, key in ((predicted, task), (np.ones(len(labels)), f"{task}, always 1")):
            if NAMES[name] in expected.get(key, {}):
                assert metric(predictions, labels) == pytest.approx(expected[key][NAMES[name]], rel=EXACT, abs=0), name
                compared += 1
    assert compared == (2 if task == "STS-B" else 6)


def test_macro_f1_is_the_mean_over_classes_that_are_predicted_or_are_labels():
    predictions, labels = np.array([0, 3, 3, 7, 0, 2]), np.array([0, 3, 7, 7, 2, 2])
    of_classes = []
    for label in (0, 2, 3, 7):
        hits = np.sum((predictions == label) & (labels == label))
        of_classes.append(2 * hits / (np.sum(predictions == label) + np.sum(labels == label)))
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx(np.mean(of_classes), rel=EXACT)


def test_a_confusion_matrix_counts_each_pair():
    random = np.random.default_rng(0)
    predictions, labels = random.integers(0, 4, (2, 50))
    matrix = confusion_matrix(predictions, labels, 5)
    for label, predicted in np.ndindex(5, 5):
        assert matrix[label, predicted] == np.sum((labels == label) & (predictions == predicted))


def test_equal_values_share_their_mean_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: Pearson's correlation of these is 4.5 / sqrt(4.5 * 5).
    assert METRICS["spearman"](np.array([1, 5, 5, 9]), np.array([2.0, 3, 4, 8])) == pytest.approx(4.5 / 22.5**0.5)


def test_matthews_correlation_of_three_classes():
    predictions, labels = np.array([0, 1, 2, 2, 1, 0]), np.array([0, 1, 2, 1, 1, 2])
    one_hot = [np.eye(3)[values] - np.eye(3)[values].mean(0) for values in (predictions, labels)]
    covariance = [np.sum(a * b) for a, b in ((one_hot[0], one_hot[1]), (one_hot[0],) * 2, (one_hot[1],) * 2)]
    expected = covariance[0] / np.sqrt(covariance[1] * covariance[2])
    assert METRICS["matthews_correlation"](predictions, labels) == pytest.approx(expected)


def test_what_is_undefined_is_0():
    labels = np.array([0, 1, 1])
    for constant in (np.zeros(3), np.ones(3)):
        assert [METRICS[name](constant, labels) for name in ("matthews_correlation", "pearson", "spearman")] == [0] * 3
    assert METRICS["f1"](np.zeros(3), np.zeros(3)) == 0
    assert METRICS["f1"](np.zeros(3), labels) == 0


def test_f1_is_not_the_same_when_predictions_and_labels_change_places_only_by_name():
    # Precision 1, recall 1/3: counting gold by predictions would make both 1.
    assert METRICS["f1"](np.array([1, 0, 0, 0]), np.array([1, 1, 1, 0])) == pytest.approx(0.5)


def test_scores_of_a_constant_prediction_are_known_for_what_they_are():
    labels = np.array([1] * 279 + [0] * 129)  # MRPC's dev set
    names = ("f1", "accuracy")
    always = score(np.ones(408), labels, names)
    assert {name: round(100 * value, 2) for name, value in always.items()} == {"f1": 81.22, "accuracy": 68.38}
    assert constant_like(always, labels, 2) == 1
    assert constant_like(score(np.zeros(408), labels, names), labels, 2) == 0
    assert constant_like(score(np.append(np.ones(407), 0), labels, names), labels, 2) is None
    numbers = np.array([0.5, 1, 4])
    assert constant_like(score(np.ones(3), numbers, ("pearson", "spearman")), numbers, 0) == 0
    assert constant_like(score(numbers, numbers, ("pearson", "spearman")), numbers, 0) is None
