"""The score command takes SQuAD's files of predictions, of the version that the dev file has."""

import json
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from tests.toy_squad import paragraph, write_json

PREDICTIONS = {"a": "good film", "b": ""}


@pytest.fixture
def files(tmp_path) -> Path:
    for version in ("1.1", "2.0"):
        marked = version == "2.0"
        second = ("b", "who", None if marked else "plot")
        asked = [paragraph("a good film plot", ("a", "what", "good film"), second, marked=marked)]
        (tmp_path / version).mkdir()
        write_json(tmp_path / version / f"dev-v{version}.json", asked, version)
    (tmp_path / "p.json").write_text(json.dumps(PREDICTIONS))
    (tmp_path / "odds.json").write_text(json.dumps({"a": 2.5, "b": 3}))
    return tmp_path


def score(files: Path, version: str, *words: object) -> int:
    flags = ["--task", "squad", "--predictions", files / "p.json", "--data_dir", files / version, *words]
    return dispatch(parse(["bert-horovod", "score", *map(str, flags)]))


def test_the_dev_file_decides_which_scores_there_are(files, capsys):
    assert score(files, "1.1") == 0
    assert json.loads(capsys.readouterr().out) == {"exact_match": 50.0, "f1": 50.0}
    assert score(files, "2.0") == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["exact"], scores["HasAns_exact"], scores["NoAns_exact"]) == (100.0, 100.0, 100.0)


def test_null_odds_abstain_above_the_threshold_which_is_officially_1(files, capsys):
    assert score(files, "2.0", "--null_odds", files / "odds.json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["exact"], scores["best_exact"], scores["best_exact_thresh"]) == (50.0, 100.0, 2.5)
    assert score(files, "2.0", "--null_odds", files / "odds.json", "--threshold", "2.5") == 0
    assert json.loads(capsys.readouterr().out)["exact"] == 100.0


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"a": 1}, "'a' has 1; expected a text for each question's id"),
        ({"z": "good"}, "has none of the dev file's 2 questions"),
        ([], "expected a JSON object"),
    ],
)
def test_predictions_that_are_none_are_refused(files, capsys, content, match):
    (files / "p.json").write_text(json.dumps(content))
    assert score(files, "1.1") != 0
    assert match in capsys.readouterr().err


def test_mistakes_are_one_message(files, capsys):
    def refuse(match: str, *words: object, version: str = "2.0") -> None:
        assert score(files, version, *words) == 2
        assert match in capsys.readouterr().err

    refuse("dev-v1.1.json is SQuAD 1.1, where every question", "--null_odds", files / "odds.json", version="1.1")
    refuse("it is read only with --null_odds", "--threshold", "0.5")
    (files / "odds.json").write_text('{"a": 1}')
    refuse("has no value for 1 questions, such as b", "--null_odds", files / "odds.json")
