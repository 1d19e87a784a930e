"""A file of predictions is scored alone, and one that does not fit its gold file is refused."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.kinds.kinds import score_file
from bert_horovod.finetuning.kinds.rerankers import Rerankers
from bert_horovod.finetuning.text_data import constant_notice
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.toys import toy_recipe_table

GOLD = "sentence1\tsentence2\tlabel\nA\tB\tentailment\nA\tB\tnot_entailment\nA\tB\tentailment\n"


@pytest.mark.parametrize("task", ["CoLA", "MRPC", "SST-2", "STS-B"])
def test_the_made_up_predictions_have_the_expected_scores(shared_data, task):
    glue = shared_data / "finetune" / "glue"
    expected = json.loads((glue / "metrics" / "expected.json").read_text())[task]
    expected["f1"] = expected.get("f1 of class 1")
    request = Request(glue / "metrics" / f"{task}-predictions.tsv.gz", glue / task)
    scores = score_file(task.replace("-", "").lower(), request)
    assert scores
    for name, value in scores.items():
        assert value == pytest.approx(expected[name], rel=1e-14, abs=0), name


def scored(tmp_path, predictions: str) -> dict[str, float]:
    (tmp_path / "dev.tsv").write_text(GOLD, encoding="utf-8")
    (tmp_path / "p.tsv").write_text(predictions, encoding="utf-8")
    return score_file("rte", Request(tmp_path / "p.tsv", dev_file=tmp_path / "dev.tsv"))


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
        score_file("rte", Request(tmp_path / "p.tsv"))


def own_files(tmp_path, gold: str, predictions: str) -> Request:
    (tmp_path / "gold.csv").write_text(gold, encoding="utf-8")
    (tmp_path / "answers.csv").write_text(predictions, encoding="utf-8")
    return Request(tmp_path / "answers.csv", dev_file=tmp_path / "gold.csv", label_column="y")


def test_a_regression_of_ones_own_has_its_correlations(tmp_path):
    request = own_files(tmp_path, "x,y\np,1\nq,2\nr,4\n", "index,prediction\n0,1.5\n1,2.5\n2,4.5\n")
    assert score_file("regression", request) == pytest.approx({"pearson": 1, "spearman": 1})


def test_any_number_of_labels_is_scored_with_and_without_probabilities(tmp_path):
    gold = 'x,y\np,"a,b"\nq,\nr,c\n'
    request = own_files(tmp_path, gold, 'index,prediction\n0,"a,c"\n1,\n2,c\n')
    scores = score_file("multilabel", request)
    assert (scores["micro_f1"], scores["exact_match"]) == (pytest.approx(4 / 6), pytest.approx(2 / 3))
    assert "macro_roc_auc" not in scores
    ranked = "index,prediction,probability_a,probability_b,probability_c\n"
    ranked += '0,"a,c",0.9,0.3,0.6\n1,,0.1,0.2,0.3\n2,c,0.2,0.1,0.8\n'
    scores = score_file("multilabel", own_files(tmp_path, gold, ranked))
    assert (scores["macro_roc_auc"], scores["precision_at_1"]) == (1, pytest.approx(2 / 3))


@pytest.mark.parametrize("rank", ["0", "1.5", "-3"])
def test_a_rank_is_a_whole_number_from_1(tmp_path, rank):
    (tmp_path / "dev.tsv").write_text(f"index\tprediction\trank\n0\t0.5\t1\n1\t0.5\t{rank}\n")
    with pytest.raises(UserError, match=rf"dev.tsv, line 3: the rank is {rank}; expected a whole number from 1"):
        score_file("embedding", Request(tmp_path / "dev.tsv"))


def test_scores_over_nothing_are_told_and_not_0(tmp_path):
    scores = score_file("reranking", own_files(tmp_path, "query,y\na,1\nb,0\n", "index,prediction\n0,0.9\n1,0.1\n"))
    assert scores == {"accuracy": 1}
    assert "no query has both relevant passages (0.5 and more) and others" in Rerankers.score_table(scores)
    assert Rerankers.score_table(scores | {"mrr_10": 0.5}) == ""
    path = tmp_path / "dev.csv"
    path.write_text("query,passage,label\na,b,1\nc,d,0\n")
    files = Files(None, path, (path,))
    kind, recipe = Rerankers.read("reranking", files, {}), recipe_from_table(toy_recipe_table())
    assert (kind.decides, "MRR@10 has no value" in kind.notices(recipe)[-1]) == ("accuracy", True)
    dev = kind.data.dev[""]
    assert constant_notice(dev, np.array([3.0, 3])) == [
        "warning: dev.csv: all labels are 3: correlations with them are undefined, and given as 0"
    ]
    assert constant_notice(dev, dev.examples.label_array()) == []


def test_labels_in_columns_of_their_own_are_scored_and_vectors_are_refused(tmp_path):
    answers = 'index,prediction\n0,"a,b"\n1,a\n'
    request = own_files(tmp_path, "x,b,a\np,1,1\nq,1,0\n", answers)
    scores = score_file("multilabel", replace(request, label_columns=("a", "b")))
    assert (scores["micro_precision"], scores["exact_match"]) == (pytest.approx(2 / 3), 0.5)
    with pytest.raises(UserError, match=r"gold\.csv, line 2: the labels are '1,1', and each .* --label_columns joy"):
        score_file("multilabel", own_files(tmp_path, 'x,y\np,"1,1"\nq,"1,0"\n', answers))


def test_a_file_of_goemotions_has_the_expected_scores(shared_data, tmp_path):
    directory = shared_data / "finetune" / "multilabel" / "goemotions"
    names = (directory / "labels.txt").read_text().split()
    for name, file, header in (("gold", "dev", "text\tlabels\n"), ("probabilities", "dev-probabilities", "")):
        text = gzip.decompress((directory / f"{file}.tsv.gz").read_bytes()).decode()
        (tmp_path / f"{name}.tsv").write_text(header + text, encoding="utf-8")
    rows = [line.split("\t") for line in (tmp_path / "probabilities.tsv").read_text().splitlines()[1:]]
    lines = ["\t".join(["index", "prediction", *(f"probability_{number}" for number in range(len(names)))])]
    for index, row in enumerate(rows):
        given = ",".join(str(number) for number, share in enumerate(row) if float(share) >= 0.5)
        lines.append("\t".join([str(index), given, *row]))
    (tmp_path / "answers.tsv").write_text("\n".join(lines) + "\n")
    request = Request(tmp_path / "answers.tsv", dev_file=tmp_path / "gold.tsv", label_column="labels")
    scores = score_file("multilabel", request)
    expected = json.loads((directory / "expected-scores.json").read_text())
    assert {name: scores[name] for name in expected.keys() - {"threshold", "examples"}} == pytest.approx(
        {name: value for name, value in expected.items() if name not in ("threshold", "examples")}, rel=1e-13, abs=0
    )


@pytest.mark.parametrize(
    ("task", "gold", "answers", "match"),
    [
        ("regression", "x,y\np,1\n", "index,prediction\n0,high\n", "line 2: the prediction is 'high', expected a nu"),
        ("regression", "x,y\np,inf\n", "index,prediction\n0,1\n", "line 2: the label is 'inf', expected a number"),
        ("multilabel", "x,y\np,a\n", "index,prediction,probability_a\n0,a,nan\n", "a probability is 'nan', expecte"),
        ("multilabel", "x,y\np,\n", "index,prediction\n0,\n", "have no label in any row; expected some to score"),
    ],
)
def test_files_of_ones_own_that_do_not_fit_are_refused(tmp_path, task, gold, answers, match):
    with pytest.raises(UserError, match=match):
        score_file(task, own_files(tmp_path, gold, answers))


def test_the_file_with_the_labels_is_asked_for(tmp_path):
    with pytest.raises(UserError, match="--task regression: expected --dev_file"):
        score_file("regression", Request(tmp_path / "answers.csv"))


def test_entities_are_scored_only_against_the_same_words(tmp_path):
    gold, predicted = tmp_path / "dev.jsonl", tmp_path / "dev.tsv"
    gold.write_text('{"tokens": ["a\\tb", "c"], "tags": ["B-X", "O"]}\n')
    predicted.write_text("a b\tB-X\tB-X\nc\tO\tO\n")
    assert score_file("ner", Request(predicted, dev_file=gold))["f1"] == 1
    predicted.write_text("a b\tB-X\tB-X\nd\tO\tO\n")
    with pytest.raises(UserError, match=r"dev\.tsv, line 2: the word 'd'; .*dev\.jsonl, line 1: 'c'; expected"):
        score_file("ner", Request(predicted, dev_file=gold))
