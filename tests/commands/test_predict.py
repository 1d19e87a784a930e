"""The predict and fill-mask commands, as they are typed."""

import io
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.predict import lines_of
from bert_horovod.errors import UserError
from bert_horovod.inference.masked_tokens import MaskedTokenPredictor
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.label_attention import LabelAttention
from bert_horovod.tasks.text_head import Classification, Reranking
from tests import google_checkpoints as google
from tests.commands.conftest import WORDS, command
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
    (tmp_path / "in.tsv").write_text("text\ngood film\nbad\n\n")
    before = SimpleNamespace(time=lambda: time.time() - 6000)  # the first rows have taken so long
    monkeypatch.setattr("bert_horovod.commands.shared.progress.time", before)
    assert predict(checkpoint, "--input", tmp_path / "in.tsv", "--output", tmp_path / "out.tsv") == 0
    output = capsys.readouterr()
    assert output.out == f"2 predictions: {tmp_path / 'out.tsv'}\n"
    assert "predicting: 100%" in output.err
    assert "2/2 [1:40:" in output.err
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3


def answers_of(checkpoint: Path, source: Path, output: Path, *more: object) -> str:
    assert predict(checkpoint, "--input", source, "--output", output, *more) == 0
    return output.read_text()


def test_the_file_of_vectors_is_looked_for_on_the_host_of_rank_0_alone(checkpoint, tmp_path, monkeypatch, capsys):
    (tmp_path / "in.txt").write_text("good film\n")
    monkeypatch.setattr("bert_horovod.commands.shared.ranks._PATIENCE_S", 0)

    def join(*arguments: object) -> None:
        raise UserError("the ranks join")

    monkeypatch.setattr("bert_horovod.collectives.starting.connect", join)
    for rank, told in (("0", "there is no directory"), ("1", "the ranks join")):
        for name, value in (("RANK", rank), ("SIZE", "2"), ("LOCAL_RANK", rank), ("LOCAL_SIZE", "2")):
            monkeypatch.setenv(f"HOROVOD_{name}", value)
        assert predict(checkpoint, "--input", tmp_path / "in.txt", "--vectors", tmp_path / "none" / "out.npy") == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("output", ["/dev/stdout", "/dev/fd/1"])
def test_answers_on_standard_output_stand_there_alone(checkpoint, tmp_path, capfd, output):
    (tmp_path / "in.csv").write_text("text\ngood film\n")
    assert predict(checkpoint, "--input", tmp_path / "in.csv", "--output", output, "--keep", "none") == 0
    told = capfd.readouterr()
    assert [line.split("\t")[0] for line in told.out.splitlines()] == ["index", "0"]
    assert f"1 predictions: {output}\n" in told.err


@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        (
            Classification(("no", "yes"), ("text",)),
            "a,b",
            "--text_columns a,b: the checkpoint reads text; expected one",
        ),
        (Classification(("no", "yes"), ()), "a,b,c", "reads one text or a pair; expected one column or two"),
        (Reranking("label", ("query", "passage")), "a", "reads query and passage; expected two columns"),
        (LabelAttention(("x", "y"), (), windows=2), "a,b", "reads one text; expected one column"),
    ],
    ids=["single", "unnamed", "pairs", "windows"],
)
def test_as_many_columns_as_texts_are_expected(tmp_path, capsys, task, columns, message):
    (tmp_path / "in.csv").write_text("a,b,c\ngood,film,bad\n")
    words = ["--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv", "--text_columns", columns]
    assert predict(write_checkpoint(tmp_path / "model", task), *words) == 2
    assert message in capsys.readouterr().err


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
    assert "for tables, finetune, predict, mine and score have --encoding latin-1" in capsys.readouterr().err


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


def test_the_likeliest_word_comes_first(toys, capsys):
    weights = toys.checkpoint / "model.safetensors"
    tensors = load_file(weights)
    tensors["cls.predictions.bias"][[WORDS.index("cat"), WORDS.index("dog")]] = 12.0, 11.0
    save_file(tensors, weights, metadata={"format": "pt"})
    assert command("fill-mask", "--checkpoint", toys.checkpoint, "The [MASK] sat.", "A [MASK] [MASK]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[2]] == ["The [MASK] sat.", "A [MASK] [MASK]"]
    guesses = [lines[i].split() for i in (1, 3, 4)]
    assert len(lines) == 5
    assert all((words[0], words[2]) == ("cat", "dog") for words in guesses)
    assert all(float(words[1].rstrip("%")) == pytest.approx(73, abs=2) for words in guesses)


@pytest.mark.full
def test_probabilities_are_those_of_transformers(toys, monkeypatch):
    monkeypatch.setenv("USE_TF", "0")
    assert_guesses_of_transformers(toys.checkpoint, "The [MASK] sat on\na [MASK].", WORDS)


def assert_guesses_of_transformers(checkpoint: Path, text: str, words: list[str]) -> None:
    """The probability of each word at each [MASK] is that of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**encoded).logits.softmax(-1)[0].numpy()
    expected = probabilities[(encoded["input_ids"][0] == tokenizer.mask_token_id).numpy()]
    [positions] = MaskedTokenPredictor(find_checkpoint(checkpoint)).guess([text], len(words) + 5)
    for guesses, row in zip(positions, expected, strict=True):
        by_word = {guess.token: guess.probability for guess in guesses}
        np.testing.assert_allclose([by_word[word] for word in words], row, rtol=1e-4, atol=1e-6)


def test_as_many_tokens_as_there_are_positions_are_accepted(toys):
    assert command("fill-mask", "--checkpoint", toys.checkpoint, "[MASK]" + " a cat" * 14 + " sat") == 0


def test_bytes_that_are_no_text_are_left_out(toys, capsys):
    assert command("fill-mask", "--checkpoint", toys.checkpoint, os.fsdecode(b"The \xff [MASK]"), "The [MASK]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The \ufffd [MASK]"
    assert lines[1] == lines[3]


def test_lines_go_on_after_bytes_that_are_no_text(capsys):
    stream = io.TextIOWrapper(io.BytesIO(b"good\r\ncaf" + b"\xe9\n\n\xff\n" + "né\ufffd".encode()), "ascii")
    assert list(lines_of(stream)) == ["good", "caf\ufffd", "", "\ufffd", "né\ufffd"]
    assert capsys.readouterr().err.count("line 2 of standard input has bytes that are not UTF-8") == 1
    assert list(lines_of(io.StringIO("a\nb\udcff"))) == ["a", "b?"]
