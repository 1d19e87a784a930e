"""Scores of entities are those of seqeval, on made-up predictions and on the real corpus."""

import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.tagged_files import TagColumns, read_tagged
from bert_horovod.finetuning.scores import entity_scores, scores_by_type, type_cells

NAMES = ("precision", "recall", "f1")


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
    for name in NAMES:
        assert scores[name] == pytest.approx(expected["default"][name], rel=1e-15)
        assert scores[f"strict_{name}"] == pytest.approx(expected["strict_iob2"][name], rel=1e-15)
    for case in expected["cases"]:
        scores = entity_scores(case["gold"], case["pred"], "IOB2")
        assert [scores[name] for name in NAMES] == case["default"]
        assert [scores[f"strict_{name}"] for name in NAMES] == case["strict_iob2"]


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
