"""The vocab command, as it is typed."""

import shlex

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.vocab import _next_command
from bert_horovod.corpus.reading.vocabulary import read_vocabulary
from bert_horovod.corpus.store import open_store


def test_vocab_writes_a_vocabulary_and_names_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Some words here and some there. " * 9, encoding="utf-8")
    words = ["vocab", "--input", "a.txt", "--size", "600", "--output", "v.txt", "--cased"]
    assert dispatch(parse(["bert-horovod", *words])) == 0
    assert "Some" in read_vocabulary("v.txt")
    out = capsys.readouterr().out
    assert "too few different words" in out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert words[-1] == "--cased"
    assert dispatch(parse(words)) == 0
    assert open_store(tmp_path / "elsewhere" / "STORE").manifest["vocabulary"]["size"] == len(
        read_vocabulary("../v.txt")
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--input", "-"], "--input - --vocab"),
        (["--input", *"abcdef"], "--input ... --vocab"),
        (["--input", "a b.jsonl", "--text_field", "body", "--bad_lines", "skip"], "/a b.jsonl' --vocab"),
    ],
)
def test_the_next_command_names_the_text_and_its_format(tmp_path, flags, expected):
    arguments = parse(["bert-horovod", "vocab", *flags, "--output", "v.txt"])
    line = _next_command(arguments)
    assert expected in line
    assert ("--text_field body --bad_lines skip" in line or "--bad_lines skip --text_field body" in line) == (
        "body" in flags
    )


def test_a_mistake_is_one_message_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("", encoding="utf-8")
    assert dispatch(parse(["bert-horovod", "vocab", "--input", "a.txt", "--output", "v.txt"])) == 2
    assert "holds no words" in capsys.readouterr().err
    assert not (tmp_path / "v.txt").exists()
