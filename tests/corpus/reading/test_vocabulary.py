"""Vocabularies: what is refused, and that learning gives the same bytes every time."""

import subprocess
import sys

import pytest

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.corpus.reading.vocabulary import (
    SPECIAL_TOKENS,
    learn_vocabulary,
    read_vocabulary,
    vocabulary_hash,
    write_vocabulary,
)
from bert_horovod.errors import UserError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"[PAD]\n\xff\n", "not UTF-8"),
        (b"[PAD]  \n[UNK]\n", r"line 1: '\[PAD\]  ' has blanks around it"),
        ("\n".join([*SPECIAL_TOKENS, "x" * 10**6]).encode(), "line 6: a token of 1,000,000 bytes, 'xxx"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"has no \[MASK\]"),
    ],
)
def test_a_bad_vocabulary_is_refused(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_vocabulary(tmp_path / "vocab.txt")


def test_a_missing_vocabulary_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        read_vocabulary(tmp_path / "vocab.txt")


def test_line_ends_do_not_change_a_vocabulary(tmp_path):
    tokens = [*SPECIAL_TOKENS, "a", "##é"]
    for name, end in (("a", "\n"), ("b", "\r\n")):
        (tmp_path / name).write_bytes(end.join(tokens).encode() + end.encode())
        assert read_vocabulary(tmp_path / name) == tokens
    write_vocabulary(tmp_path / "c" / "vocab.txt", tokens)
    assert (tmp_path / "c" / "vocab.txt").read_bytes() == (tmp_path / "a").read_bytes()
    assert vocabulary_hash(tokens) != vocabulary_hash(tokens[:-1])


@pytest.fixture
def tied(tmp_path):
    """A text in which very many pairs are equally frequent."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [a + b + c for a in letters for b in letters for c in "aeiou"]
    path = tmp_path / "a.txt"
    text = " ".join(words) + ".\n\n" + " ".join(reversed(words)) + ". Ça été, 中文。 Σίσυφος"
    path.write_text(text, encoding="utf-8")
    return path


def test_learning_gives_the_same_bytes_in_every_process(tied, tmp_path):
    program = (
        "import sys; from bert_horovod.corpus.reading.vocabulary import learn_vocabulary, write_vocabulary; "
        "from bert_horovod.corpus.reading.finding import find_sources; "
        "write_vocabulary(sys.argv[2], learn_vocabulary(find_sources([sys.argv[1]]), 512, True))"
    )
    for i in range(4):
        subprocess.run([sys.executable, "-c", program, tied, tmp_path / f"vocab-{i}"], check=True)
    assert len({(tmp_path / f"vocab-{i}").read_bytes() for i in range(4)}) == 1
    assert len(read_vocabulary(tmp_path / "vocab-0")) == 512


def test_a_learned_vocabulary_knows_its_text(tied):
    vocabulary = learn_vocabulary(find_sources([str(tied)]), 512, True)
    assert len(set(vocabulary)) == len(vocabulary) == 512
    assert not any(token.lower() != token for token in vocabulary[104:])
    tokenizer = Tokenizer(vocabulary, UNCASED)
    ids, _ = tokenizer(tied.read_text(encoding="utf-8").split("\n\n"))
    assert (ids == tokenizer.unknown_id).mean() < 0.001
    cased = learn_vocabulary(find_sources([str(tied)]), 512, False)
    assert {"Ç", "é"} & {token.removeprefix("##") for token in cased}


def test_special_tokens_lie_where_googles_do(tied, shared_data):
    vocabulary = learn_vocabulary(find_sources([str(tied)]), 512, True)
    assert [vocabulary.index(token) for token in SPECIAL_TOKENS] == [0, 100, 101, 102, 103]
    assert vocabulary[1:100] == [f"[unused{i}]" for i in range(99)]
    assert read_vocabulary(shared_data / "vocab" / "bert-base-uncased-vocab.txt")[:104] == vocabulary[:104]


def test_frequent_words_become_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("sunflower moon. " * 500 + "rare", encoding="utf-8")
    vocabulary = learn_vocabulary(find_sources([str(tmp_path)]), 512, True)
    assert {"sunflower", "moon", "."} <= set(vocabulary)


def test_senseless_requests_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no words"):
        learn_vocabulary(find_sources([str(tmp_path)]), 1000, True)
    for size in (1 << 25, 1 << 70, 10**5000):
        with pytest.raises(UserError, match=r"--size .*and at most 16,777,216"):
            learn_vocabulary([], size, True)
    with pytest.raises(UserError, match="--size 10"):
        learn_vocabulary(find_sources([str(tmp_path)]), 10, True)
