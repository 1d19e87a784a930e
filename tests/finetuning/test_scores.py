"""Official scores: those of scikit-learn and scipy on the same predictions, over a whole set.

Scores of any number of labels: NumPy's by definition; test_scoring.py has those of scikit-learn on GoEmotions.

Scores of entities are those of seqeval, on made-up predictions and on the real corpus.

MRR@10 and accuracy of candidates by query.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.reading.tagged_files import TagColumns, read_tagged
from bert_horovod.finetuning.kinds.rerankers import ranking_scores
from bert_horovod.finetuning.scores import (
    METRICS,
    average_precision,
    best_threshold,
    confusion_matrix,
    constant_like,
    entity_scores,
    multilabel_scores,
    precision_at,
    roc_auc,
    score,
    score_names,
    scores_by_type,
    type_cells,
)

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


def toy(examples: int = 30, labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and which labels the examples have."""
    random = np.random.default_rng(4)
    truth = random.random((examples, labels)) < 0.3
    return (random.random(truth.shape) * 0.7 + truth * 0.3).round(1), truth


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


ENTITY_SCORES = ("precision", "recall", "f1")


@pytest.fixture
def corpus(shared_data) -> Path:
    directory = shared_data / "finetune" / "ner" / "ncbi-disease"
    if not directory.is_dir():
        pytest.skip("needs ../shared/data/finetune/ner, which is not here")
    return directory


def test_scores_of_the_ncbi_corpus_and_of_tiny_cases_are_seqevals(corpus):
    expected = json.loads((corpus / "expected-scores.json").read_text())
    predicted = read_tagged(corpus / "devel-predictions.tsv.gz")
    gold = read_tagged(corpus / "devel-predictions.tsv.gz", TagColumns(tag="-2"))
    assert len(gold.words) == expected["sentences"]
    assert sum(map(len, gold.words)) == expected["tokens"]
    scores = entity_scores(gold.tags, predicted.tags, "IOB2")
    for name in ENTITY_SCORES:
        assert scores[name] == pytest.approx(expected["default"][name], rel=1e-15)
        assert scores[f"strict_{name}"] == pytest.approx(expected["strict_iob2"][name], rel=1e-15)
    for case in expected["cases"]:
        scores = entity_scores(case["gold"], case["pred"], "IOB2")
        assert [scores[name] for name in ENTITY_SCORES] == case["default"]
        assert [scores[f"strict_{name}"] for name in ENTITY_SCORES] == case["strict_iob2"]


def test_without_an_entity_all_scores_are_0():
    assert set(entity_scores([["O"]], [["O"]], "IOB2").values()) == {0.0}


def test_an_entity_counts_for_its_own_sentence():
    scores = entity_scores([["B-A"], ["O"]], [["O"], ["B-A"]], "IOB2")
    assert (scores["precision"], scores["recall"]) == (0.0, 0.0)


def test_a_table_has_the_scores_of_each_type():
    by_type = scores_by_type([["B-A", "I-A", "B-B", "O"]], [["B-A", "I-A", "B-A", "B-C"]])
    assert by_type == {
        "A": {"f1": 2 / 3, "precision": 0.5, "recall": 1.0, "support": 1},
        "B": {"f1": 0.0, "precision": 0.0, "recall": 0.0, "support": 1},
        "C": {"f1": 0.0, "precision": 0.0, "recall": 0.0, "support": 0},
    }
    assert type_cells(by_type)[:2] == [
        ["type", "precision", "recall", "f1", "entities"],
        ["A", "0.5000", "1.0000", "0.6667", "1"],
    ]


def plain_mrr(scores, relevance, queries) -> float:
    found = []
    for query in sorted(set(queries)):
        mine = [i for i, each in enumerate(queries) if each == query]
        order = sorted(mine, key=lambda i: (-scores[i], relevance[i] >= 0.5))
        ranks = [1 + place for place, i in enumerate(order) if relevance[i] >= 0.5]
        if ranks and len(ranks) < len(mine):
            found.append(1 / ranks[0] if ranks[0] <= 10 else 0.0)
    return sum(found) / len(found)


def test_mrr_is_that_of_the_plain_way_with_ties_against_the_model():
    random = np.random.default_rng(0)
    queries = [f"q{number}" for number in random.integers(0, 30, 600)]
    relevance = random.choice([0, 0.4, 0.6, 1], 600, p=[0.7, 0.2, 0.05, 0.05])
    scores = random.integers(0, 12, 600) / 12
    found = ranking_scores(scores, relevance, queries)
    assert found["mrr_10"] == pytest.approx(plain_mrr(scores, relevance, queries))
    assert found["accuracy"] == np.mean((scores >= 0.5) == (relevance >= 0.5))


def test_constant_scores_and_queries_with_one_kind_of_candidates_gain_nothing():
    assert ranking_scores(np.ones(3), np.array([1, 0, 0]), ["a"] * 3)["mrr_10"] == pytest.approx(1 / 3)
    assert ranking_scores(np.array([0.9, 0.1]), np.array([1, 1]), ["a", "b"]) == {"accuracy": 0.5}  # MRR over none


def test_of_thousands_of_labels_one_that_is_always_predicted_is_found_at_once(monkeypatch):
    labels, tried = np.arange(9000) % 3000, []
    labels[:50] = 7
    scores = score(np.full(9000, 7), labels, ("accuracy", "macro_f1"))
    monkeypatch.setattr("bert_horovod.finetuning.scores.score", lambda *given: tried.append(given) or score(*given))
    assert constant_like(scores, labels, 3000) == 7
    assert constant_like({"accuracy": 3 / 9000, "macro_f1": 0.1}, labels, 3000) is None
    assert len(tried) == 2
