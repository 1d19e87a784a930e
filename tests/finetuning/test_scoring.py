"""A file of predictions is scored alone, and one that does not fit its gold file is refused."""

import json

import pytest

from bert_horovod.errors import UserError
from bert_horovod.finetuning.scoring import SCORERS, Request

GOLD = "sentence1\tsentence2\tlabel\nA\tB\tentailment\nA\tB\tnot_entailment\nA\tB\tentailment\n"


@pytest.mark.parametrize("task", ["CoLA", "MRPC", "SST-2", "STS-B"])
def test_the_made_up_predictions_have_the_expected_scores(shared_data, task):
    glue = shared_data / "finetune" / "glue"
    expected = json.loads((glue / "metrics" / "expected.json").read_text())[task]
    expected["f1"] = expected.get("f1 of class 1")
    request = Request(glue / "metrics" / f"{task}-predictions.tsv.gz", glue / task)
    scores = SCORERS[task.replace("-", "").lower()](request)
    assert scores
    for name, value in scores.items():
        assert value == pytest.approx(expected[name], rel=1e-14, abs=0), name


def scored(tmp_path, predictions: str) -> dict[str, float]:
    (tmp_path / "dev.tsv").write_text(GOLD, encoding="utf-8")
    (tmp_path / "p.tsv").write_text(predictions, encoding="utf-8")
    return SCORERS["rte"](Request(tmp_path / "p.tsv", dev_file=tmp_path / "dev.tsv"))


def test_predictions_go_by_their_index(tmp_path):
    text = "index\tprediction\n2\tentailment\n0\tnot_entailment\n1\tnot_entailment\n"
    assert scored(tmp_path, text) == {"accuracy": 2 / 3}


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ("0\tentailment\n1\tentailment\n", "has 2 predictions, .* has 3 examples"),
        ("0\tentailment\n1\tentailment\n1\tentailment\n", "line 4: the index is '1'; expected each of 0 to 2 once"),
        ("0\tentailment\n1\tentailment\n3\tentailment\n", "line 4: the index is '3'"),
        ("0\tentailment\n1\tentailment\n-1\tentailment\n", "line 4: the index is '-1'"),
        ("0\tentailment\n1\tyes\n2\tentailment\n", "line 3: the prediction is 'yes'; expected one of entailment, not"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(tmp_path, rows, match):
    with pytest.raises(UserError, match=match):
        scored(tmp_path, f"index\tprediction\n{rows}")


def test_a_file_that_has_no_such_columns_is_refused(tmp_path):
    with pytest.raises(UserError, match="no column 'index'"):
        scored(tmp_path, "0\tentailment\n1\tentailment\n")
    with pytest.raises(UserError, match="expected --data_dir, the directory RTE of GLUE, or --dev_file"):
        SCORERS["rte"](Request(tmp_path / "p.tsv"))
