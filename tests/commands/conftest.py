"""A toy checkpoint and a token store that was prepared with its vocabulary."""

from pathlib import Path
from typing import NamedTuple

import pytest

from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.pretraining import Pretraining
from tests.toys import prepare

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "ran", "on", "a", "mat", ".", "##s"]
MODEL = Model(
    vocab_size=len(WORDS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)


class Toys(NamedTuple):
    """Where the toys lie."""

    checkpoint: Path
    store: Path


def write_checkpoint(
    directory: Path, pairs: bool = True, vocabulary: list[str] = WORDS, lowercase: bool = True
) -> Path:
    """A checkpoint of random parameters, as the program writes it."""
    write_directory(
        directory,
        MODEL,
        Pretraining(pairs),
        initial_values(pretraining_shapes(MODEL, pairs), MODEL.initializer_range, 0),
        vocabulary,
        TokenizerSettings(lowercase),
    )
    return directory


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
    for place in ("runtime.devices", "finetuning.initialisation"):
        monkeypatch.setattr(f"bert_horovod.{place}.use_devices", lambda *arguments: None)
