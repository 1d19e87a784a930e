"""Scores are those that the official scripts print for published predictions."""

import gzip
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.squad_files import Questions, read_squad
from bert_horovod.finetuning.squad_scores import normalise, squad_scores, word_f1

PUBLISHED = {
    "v1.1-bert-large-ensemble": "dev-v1.1",
    "v1.1-logistic-regression": "dev-v1.1",
    "v1.1-match-lstm": "dev-v1.1",
    "v2.0-bert-large-single": "dev-v2.0",
    "v2.0-nlnet": "dev-v2.0",
}


@pytest.fixture(scope="module")
def squad(shared_data) -> Path:
    return shared_data / "finetune" / "squad"


@pytest.fixture(scope="module")
def dev_sets(squad) -> dict[str, Questions]:
    return {name: read_squad(squad / f"{name}.json.gz", scored=True) for name in ("dev-v1.1", "dev-v2.0")}


def unpacked(path: Path):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize("system", PUBLISHED)
def test_published_predictions_score_what_the_official_scripts_print(squad, dev_sets, system):
    directory = squad / "predictions"
    expected = json.loads((directory / "expected-scores.json").read_text())[system]
    questions, predictions = dev_sets[PUBLISHED[system]], unpacked(directory / f"{system}.json.gz")
    assert squad_scores(questions, predictions) == expected["official"]
    if questions.version_2:
        odds = unpacked(directory / f"{system}.null-odds-made-up.json.gz")
        for threshold in (1.0, 0.3):
            name = f"official with -n, -t {threshold}"
            assert squad_scores(questions, predictions, odds, threshold) == expected[name]


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The  Theatre, an  a.m. A", "theatre am"),
        ("“quoted” – don't", "“quoted” – dont"),
        ("Café\u2009au\u3000lait", "café au lait"),
        ("a the an", ""),
        ("state-of-the-art", "stateoftheart"),
    ],
)
def test_texts_are_compared_as_officially_normalised(text, normalised):
    assert normalise(text) == normalised


def test_repeated_words_count_as_often_as_both_have_them():
    assert word_f1("to be or not to be", "to be to") == pytest.approx(2 * (3 / 6) * (3 / 3) / (3 / 6 + 1))
    assert (word_f1("x", ""), word_f1("", ""), word_f1("", "", both_empty=1.0)) == (0.0, 0.0, 1.0)


def asked(*answers: list[str], version_2: bool = True) -> Questions:
    ids = [f"q{number}" for number in range(len(answers))]
    texts = [[(text, 0) for text in some] for some in answers]
    return Questions(
        Path("file"), ["context"], ids, ids, [0] * len(ids), texts, [not some for some in texts], version_2
    )


def test_a_missing_prediction_is_wrong_in_version_1_and_left_out_in_version_2():
    predictions = {"q0": "one"}
    assert squad_scores(asked(["one"], ["two"], version_2=False), predictions)["exact_match"] == 50.0
    scores = squad_scores(asked(["one"], ["two"], []), predictions)
    assert scores == {"exact": 100.0, "f1": 100.0, "total": 1} | {
        "HasAns_exact": 100.0,
        "HasAns_f1": 100.0,
        "HasAns_total": 1,
    }
    assert squad_scores(asked(["one"]), {}) == {"exact": 0.0, "f1": 0.0, "total": 0}


def test_gold_answers_of_articles_and_punctuation_alone_count_as_none():
    assert squad_scores(asked(["the", "..."]), {"q0": ""})["f1"] == 100.0


def test_the_best_threshold_is_the_first_that_abstains_from_wrong_answers_and_keeps_right_ones():
    questions, predictions = asked(["one"], [], ["two"], []), {"q0": "one", "q1": "x", "q2": "wrong", "q3": "y"}
    odds = {"q0": -3.0, "q1": -1.0, "q2": -2.0, "q3": 4.0}
    scores = squad_scores(questions, predictions, odds, threshold=-3.0)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75.0, -3.0)
    assert scores["exact"] == scores["best_exact"]
    assert squad_scores(questions, predictions, odds, threshold=9.0)["exact"] == 25.0
