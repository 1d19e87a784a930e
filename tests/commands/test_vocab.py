"""The vocab command, as it is typed."""

import shlex
from dataclasses import replace
from string import ascii_lowercase

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.vocab import _next_command
from bert_horovod.corpus.reading.vocabulary import SPECIAL_TOKENS, read_vocabulary
from bert_horovod.corpus.store import open_store
from tests.commands.conftest import command
from tests.toy_glue import MODEL, write_checkpoint


def test_vocab_writes_a_vocabulary_and_names_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Some words here and some there. " * 9, encoding="utf-8")
    assert command("vocab", "--input", "a.txt", "--size", 600, "--output", "v.txt", "--cased") == 0
    assert "Some" in read_vocabulary("v.txt")
    out = capsys.readouterr().out
    assert "too few different words" in out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert words[-1] == "--cased"
    assert dispatch(parse(words)) == 0
    assert len(open_store(tmp_path / "elsewhere" / "STORE").vocabulary) == len(read_vocabulary("../v.txt"))


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
    assert all((words in line) == ("body" in flags) for words in ("--text_field body", "--bad_lines skip"))


TERMS = "myocardial infarction and myocardial ischaemia. "


def test_a_checkpoints_vocabulary_is_extended_and_the_next_command_is_import(tmp_path, capsys):
    vocabulary = ["[PAD]", "[unused0]", *SPECIAL_TOKENS[1:], "and", ".", *ascii_lowercase]
    vocabulary += [f"##{letter}" for letter in ascii_lowercase]
    write_checkpoint(tmp_path / "base", model=replace(MODEL, vocab_size=len(vocabulary)), words=vocabulary)
    (tmp_path / "a.txt").write_text(TERMS * 9, encoding="utf-8")
    output = tmp_path / "v.txt"
    words = ("--extend", tmp_path / "base", "--input", tmp_path / "a.txt", "--output", output, "--add", 3)
    assert command("vocab", *words) == 0
    out = capsys.readouterr().out
    assert read_vocabulary(output) == [vocabulary[0], "myocardial", *vocabulary[2:], "infarction", "ischaemia"]
    assert "added 3 pieces, 1 in places of [unused...] tokens and 2 behind" in out
    assert "tokens a word: 6.8333 before, 1.0000 after: 85.37% fewer, on 54 words and punctuation marks" in out
    assert "myocardial 162, infarction 81, ischaemia 72" in out
    words = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert words == ["bert-horovod", "import", str(tmp_path / "base"), "DIR", "--vocab", str(output)]


def test_an_extension_does_not_replace_the_vocabulary_of_a_checkpoint(tmp_path, capsys):
    base = write_checkpoint(tmp_path / "base")
    before = (base / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text(TERMS, encoding="utf-8")
    words = ("--extend", base, "--input", tmp_path / "a.txt", "--output", base / "vocab.txt", "--add", 3)
    assert command("vocab", *words) == 2
    assert f"vocab.txt is within --extend {base}, whose vocabulary belongs" in capsys.readouterr().err
    assert (base / "vocab.txt").read_text(encoding="utf-8") == before
