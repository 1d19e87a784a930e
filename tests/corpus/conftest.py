"""A small text, a vocabulary that knows it, and a way to prepare them."""

import pytest

from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from tests.toys import prepare

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PARAGRAPH = 'The cat sat. Mr. Fox saw it! "Was it here?" said he.\nA dog ran on.'


@pytest.fixture
def vocabulary(tmp_path):
    """A vocab.txt with every letter and a few words."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'\"-"
    pieces = [f"##{letter}" for letter in letters if letter.isalnum()]
    tokens = [*SPECIAL, *letters, *pieces, "the", "cat", "sat", "dog"]
    path = tmp_path / "vocabulary" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    """A directory with two documents."""
    directory = tmp_path / "text"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.txt").write_text(PARAGRAPH + "\n\n" + PARAGRAPH + "\n", encoding="utf-8")
    (directory / "sub" / "b.txt").write_text("One more. And another one.\n", encoding="utf-8")
    return directory


@pytest.fixture
def make_store(tmp_path, vocabulary):
    """Prepares inputs into tmp_path/store; settings as keywords."""

    def make(*inputs, output=None, lowercase=True, vocabulary_path=None, **settings):
        return prepare(
            [str(path) for path in inputs],
            vocabulary_path or vocabulary,
            output or tmp_path / "store",
            settings=Settings(tokenizer=TokenizerSettings(lowercase), **settings),
        )

    return make
