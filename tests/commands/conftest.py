"""A toy checkpoint and a token store that was prepared with its vocabulary."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.tasks.pretraining import Pretraining
from tests import toy_glue
from tests.toys import prepare

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "ran", "on", "a", "mat", ".", "##s"]
MODEL = replace(toy_glue.MODEL, vocab_size=len(WORDS), hidden_size=8, intermediate_size=16)


def command(*words: object) -> int:
    """Run `bert-horovod WORDS` in this process; its exit code."""
    return dispatch(parse(["bert-horovod", *map(str, words)]))


class Toys(NamedTuple):
    """Where the toys lie."""

    checkpoint: Path
    store: Path


def write_checkpoint(directory: Path, pairs: bool = True, words: list[str] = WORDS, lowercase: bool = True) -> Path:
    """A checkpoint of random parameters, as the program writes it."""
    return toy_glue.write_checkpoint(directory, Pretraining(pairs), MODEL, words, TokenizerSettings(lowercase), 0.02)


@pytest.fixture
def toys(tmp_path) -> Toys:
    """A checkpoint with both heads, and a store of 40 documents, half of it held out."""
    (tmp_path / "text").mkdir()
    for i in range(40):
        text = f"The {WORDS[6 + i % 2]} {WORDS[8 + i % 2]} on a mat. " * (2 + i % 5) + "A cat ran. " * i
        (tmp_path / "text" / f"{i:02d}.txt").write_text(text, encoding="utf-8")
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    prepare([str(tmp_path / "text")], vocabulary, tmp_path / "store", settings=Settings(held_out=0.5))
    return Toys(write_checkpoint(tmp_path / "checkpoint"), tmp_path / "store")


@pytest.fixture(autouse=True)
def devices_are_taken(monkeypatch):
    """Commands that run in this process find TensorFlow's devices taken: other tests have used them."""
    for place in ("runtime.devices", "finetuning.initialisation", "training.entering"):
        monkeypatch.setattr(f"bert_horovod.{place}.use_devices", lambda *arguments: None)
