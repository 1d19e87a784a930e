"""The predict command, as it is typed."""

import io
import sys

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.tasks.classification import Classification
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


def test_a_files_predictions_are_written_with_progress_on_standard_error(checkpoint, tmp_path, capsys):
    (tmp_path / "in.tsv").write_text("text\ngood film\nbad\n")
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 0
    said = capsys.readouterr()
    assert said.out == f"2 predictions: {tmp_path / 'out.tsv'}\n"
    assert "predicting: 100%" in said.err
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3


def test_mistakes_are_one_message_and_nothing_is_written(checkpoint, tmp_path, capsys):
    assert predict(checkpoint, "--input", tmp_path / "in.tsv") == 2
    assert "--output: expected with a file as --input" in capsys.readouterr().err
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "in.tsv").write_text("sentence\ngood film\n")
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 2
    assert "no column 'text', its columns are ['sentence']" in capsys.readouterr().err
    assert not (tmp_path / "out.tsv").exists()
