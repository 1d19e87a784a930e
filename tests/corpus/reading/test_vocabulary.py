"""Vocabularies: what is refused, and that learning gives the same bytes every time."""

import random

import pytest
import tokenizers

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, library_tokenizer
from bert_horovod.corpus.reading.vocabulary import (
    SPECIAL_TOKENS,
    learn_vocabulary,
    read_vocabulary,
    vocabulary_hash,
    write_vocabulary,
)
from bert_horovod.errors import UserError
from tests.horovod_runs import run_python


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
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        read_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
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


@pytest.mark.full
def test_learning_gives_the_same_bytes_in_every_process(tied, tmp_path):
    program = (
        "import sys; from bert_horovod.corpus.reading.vocabulary import learn_vocabulary, write_vocabulary; "
        "from bert_horovod.corpus.reading.finding import find_sources; "
        "write_vocabulary(sys.argv[2], learn_vocabulary(find_sources([sys.argv[1]]), 512, True))"
    )
    for i in range(4):
        assert run_python("-c", program, tied, tmp_path / f"vocab-{i}").returncode == 0
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


def test_senseless_sizes_are_refused():
    for size in (10, 1 << 25, 1 << 70, 10**5000):
        with pytest.raises(UserError, match=r"--size .*and at most 16,777,216"):
            learn_vocabulary([], size, True)


def characters(first: int, count: int, length: int) -> list[str]:
    """Random characters from `first` on, rarer and rarer; each at least twice."""
    draw = random.Random(0)
    shares = [1 / (1 + number) for number in range(count)]
    some = [chr(first + number) for number in range(count)]
    return draw.choices(some, shares, k=length) + 2 * some


@pytest.mark.parametrize("language", ["Chinese", "Japanese"])
def test_characters_that_are_words_of_their_own_need_no_continuation_pieces(tmp_path, language):
    signs = characters(0x4E00, 2000, 40_000)
    if language == "Japanese":  # kana make words, between signs
        kana = characters(0x3041, 80, 40_000)
        signs = ["".join(pair) for pair in zip(signs, kana, strict=False)]
    lines = ["".join(signs[i : i + 40]) + "。 the cat" for i in range(0, len(signs), 40)]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    vocabulary = learn_vocabulary(find_sources([str(tmp_path / "a.txt")]), 3000, True)
    theirs = tokenizers.BertWordPieceTokenizer(lowercase=True)
    theirs.train([str(tmp_path / "a.txt")], vocab_size=3000, limit_alphabet=1 << 20, show_progress=False)
    assert len(vocabulary) <= 3000
    assert {"the", "cat"} <= set(vocabulary)
    for unknown, batch in (
        (theirs.token_to_id("[UNK]"), theirs._tokenizer.encode_batch(lines, add_special_tokens=False)),
        (vocabulary.index("[UNK]"), library_tokenizer(vocabulary, UNCASED).encode_batch(lines)),
    ):
        assert not any(unknown in encoding.ids for encoding in batch)


def test_the_rarest_characters_of_a_large_alphabet_get_no_entries(tmp_path):
    rare = "".join(chr(0x4E00 + number) for number in range(100))
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 50_000 + rare, encoding="utf-8")
    vocabulary = learn_vocabulary(find_sources([str(tmp_path / "a.txt")]), 600, True)
    assert not set(rare) & set(vocabulary)


def test_a_vocabulary_is_read_as_transformers_reads_it(tmp_path):
    lines = ["\ufeff[PAD]", *SPECIAL_TOKENS[1:], "a", "", "\u2028", "##\u2028", " \t", "\u3000", "a", "", ""]
    tokens = ["[PAD]", *SPECIAL_TOKENS[1:], "a", "", "\u2028", "##\u2028", "", "\u3000", "a"]
    for end in ("\n", "\r\n"):
        (tmp_path / "vocab.txt").write_bytes(end.join(lines).encode())
        assert read_vocabulary(tmp_path / "vocab.txt") == tokens
    assert Tokenizer(tokens, UNCASED)(["a \u2028 b"])[0].tolist() == [11, 1]
