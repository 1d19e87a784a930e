"""The predict command, as it is typed."""

import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.tasks.text_head import Classification
from tests import google_checkpoints as google
from tests.toy_glue import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "model", Classification(("no", "yes"), ("text",)))


def predict(checkpoint, *words: object) -> int:
    return dispatch(parse(["bert-horovod", "predict", "--checkpoint", str(checkpoint), *map(str, words)]))


def test_lines_of_standard_input_are_answered_one_by_one(checkpoint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("good film\n\nbad\r\n"))
    assert predict(checkpoint, "--input", "-") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.split("\t")[0] in ("no", "yes") for line in lines)


def test_a_files_predictions_are_written_with_progress_on_standard_error(checkpoint, tmp_path, capsys, monkeypatch):
    (tmp_path / "in.tsv").write_text("text\ngood film\nbad\n")
    before = SimpleNamespace(time=lambda: time.time() - 6000)  # the first rows have taken so long
    monkeypatch.setattr("bert_horovod.commands.predict.time", before)
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 0
    output = capsys.readouterr()
    assert output.out == f"2 predictions: {tmp_path / 'out.tsv'}\n"
    assert "predicting: 100%" in output.err
    assert "2/2 [1:40:" in output.err
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3


def test_a_blank_last_line_is_no_example(checkpoint, tmp_path):
    (tmp_path / "in.tsv").write_text("text\ngood film\nbad film\n\n")
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 0
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3


def answers_of(checkpoint: Path, source: Path, output: Path, *more: object) -> str:
    assert predict(checkpoint, "--input", source, "--output", output, *more) == 0
    return output.read_text()


def test_a_table_of_answers_keeps_the_columns_of_its_input(checkpoint, tmp_path, capsys):
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes("id;prediction;text\n7;0,5;caf\xe9\n8;1;bad film\n".encode("latin-1"))
    read = (source, output, "--encoding", "latin-1")
    ours = "index,prediction,probability_no,probability_yes"
    lines = answers_of(checkpoint, *read).splitlines()
    assert lines[0] == f"{ours},id,input_prediction,text"
    assert lines[1].endswith(',7,"0,5",caf\xe9')
    assert answers_of(checkpoint, *read, "--keep", "id").splitlines()[0] == f"{ours},id"
    assert answers_of(checkpoint, *read, "--keep", "none").splitlines()[0] == ours
    assert predict(checkpoint, "--input", source, "--output", output, "--keep", "name", *read[2:]) == 2
    assert "no column 'name', its columns are ['id', 'prediction', 'text']" in capsys.readouterr().err
    assert predict(checkpoint, "--input", source, "--output", output) == 2
    assert "for tables, finetune, predict and score have --encoding latin-1" in capsys.readouterr().err


def imported(checkpoint: Path, directory: Path) -> Path:
    assert dispatch(parse(["bert-horovod", "import", str(checkpoint), str(directory)])) == 0
    return directory


@pytest.mark.parametrize("named", ["", "bert_model.ckpt"])
def test_a_tf1_classifier_answers_as_the_directory_that_is_imported_from_it(tmp_path, named):
    google.write_checkpoint(tmp_path / "uncased", google.ENCODER | google.POOLER | google.CLASSIFIER, adam=True)
    (tmp_path / "in.csv").write_text("text\nthe cat sat on a mat\na cat\n")
    arguments = tmp_path / "in.csv", tmp_path / "out.csv", "--text_columns", "text"
    predictions = answers_of(tmp_path / "uncased" / named, *arguments)
    probabilities = "probability_LABEL_0,probability_LABEL_1,probability_LABEL_2"
    assert predictions.splitlines()[0] == f"index,prediction,{probabilities},text"
    assert answers_of(imported(tmp_path / "uncased", tmp_path / "made"), *arguments) == predictions


def test_a_tf1_checkpoint_of_squad_answers_and_one_without_a_head_is_refused(tmp_path, capsys):
    google.write_checkpoint(tmp_path / "uncased", google.ENCODER | google.SQUAD)
    (tmp_path / "in.jsonl").write_text(json.dumps({"question": "a cat", "context": "the cat sat on a mat " * 9}))
    arguments = tmp_path / "in.jsonl", tmp_path / "out.json", "--doc_stride", 8
    predictions = answers_of(tmp_path / "uncased", *arguments)
    assert json.loads(predictions)["0"] in "the cat sat on a mat " * 9
    assert answers_of(imported(tmp_path / "uncased", tmp_path / "made"), *arguments) == predictions
    google.write_checkpoint(tmp_path / "pretrained")
    assert predict(tmp_path / "pretrained", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.json") == 2
    assert "is a 'BertForPreTraining'; expected BertForSequenceClassification or" in capsys.readouterr().err
