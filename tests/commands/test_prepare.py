"""The prepare command, as it is typed."""

import os
import subprocess
import sys

import pytest

from bert_horovod.__main__ import dispatch, parse

LETTERS = "abcdefghijklmnopqrstuvwxyz.0123456789"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Text and a vocabulary in the working directory."""
    monkeypatch.chdir(tmp_path)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    (tmp_path / "a.txt").write_text("A cat. A dog.\n\nThe end.", encoding="utf-8")
    return tmp_path


def command(*words):
    return dispatch(parse(["bert-horovod", *words]))


def test_prepare_verify_and_again(files, capsys):
    words = ("prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "store")
    assert command(*words) == 0
    out = capsys.readouterr().out
    assert "1 documents, 3 sentences" in out
    assert "next: bert-horovod pretrain --recipe RECIPE.toml --data_dir store" in out
    assert command("verify", "--data_dir", "store") == 0
    assert "all as they were written" in capsys.readouterr().out
    assert command(*words) == 0
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--input", "none.txt", "--vocab", "vocab.txt"), "none.txt: no such file"),
        (("--input", "a.txt", "--vocab", "none.txt"), "cannot read the vocabulary none.txt"),
        (("--input", "a.txt", "--vocab", "a.txt"), "an empty line"),
        (("--input", "a.txt", "--vocab", "vocab.txt", "--held_out", "2"), "--held_out 2.0"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(files, capsys, words, message):
    assert command("prepare", *words, "--output_dir", "store") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not os.path.exists("store")


def test_help_needs_no_tensorflow():
    program = (
        "import sys; from bert_horovod.commands import prepare, verify, vocab; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'tokenizers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
