"""An extended vocabulary: old ids stay, and each new piece saves as many tokens as is said."""

import random
from collections import Counter

import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, library_tokenizer
from bert_horovod.corpus.reading.vocabulary import SPECIAL_TOKENS
from bert_horovod.corpus.reading.vocabulary_extension import extend_vocabulary, unused_places, word_pieces

LETTERS = "abcde"
BASE = ["[PAD]", "[unused0]", "[unused1]", *SPECIAL_TOKENS[1:], *LETTERS, *(f"##{letter}" for letter in LETTERS), "."]


def tokens(vocabulary: list[str], counts: Counter[str]) -> int:
    """The tokens of a corpus by the tokenizers library, in which each text of the words' alphabet is one word."""
    tokenizer = library_tokenizer(vocabulary, UNCASED)
    return sum(count * len(tokenizer.encode(word, add_special_tokens=False).ids) for word, count in counts.items())


def random_words(seed: int) -> Counter[str]:
    """Words that share beginnings, middles and ends."""
    draw = random.Random(seed)
    parts = ["".join(draw.choices(LETTERS, k=draw.randint(1, 4))) for _ in range(12)]
    return Counter("".join(draw.choices(parts, k=draw.randint(1, 4))) for _ in range(400))


@pytest.mark.parametrize("seed", range(3))
def test_each_piece_saves_what_is_said_by_the_librarys_own_tokenizer(seed):
    counts = random_words(seed)
    extension = extend_vocabulary(BASE, counts, 12)
    assert (extension.words, extension.tokens_before) == (counts.total(), tokens(BASE, counts))
    vocabulary, before = list(BASE), extension.tokens_before
    for piece, saved in extension.saved.items():
        vocabulary.append(piece)
        after = tokens(vocabulary, counts)
        assert before - after == saved >= 2
        before = after
    assert extension.tokens_after == before == tokens(extension.vocabulary, counts)


@pytest.mark.parametrize("seed", range(2))
def test_the_first_piece_saves_no_less_than_any_other_run_of_pieces(seed):
    counts = Counter(dict(random_words(seed).most_common(30)))
    candidates = {
        ("##" if first else "") + word[first:last]
        for word in counts
        for first in range(len(word))
        for last in range(first + 2, len(word) + 1)
    }
    before = tokens(BASE, counts)
    best = max(before - tokens([*BASE, piece], counts) for piece in candidates)
    assert next(iter(extend_vocabulary(BASE, counts, 1).saved.values())) == best


def test_new_pieces_take_unused_places_first_and_old_ids_stay():
    counts = Counter({"abba": 50, "cede": 40, "bead": 30, "dad": 20})
    extension = extend_vocabulary(BASE, counts, 4)
    assert list(extension.saved) == ["abba", "cede", "bead", "dad"]
    assert list(extension.saved.values()) == [150, 120, 90, 40]
    expected = list(BASE)
    expected[1:3] = ["abba", "cede"]
    assert extension.vocabulary == [*expected, "bead", "dad"]
    assert extension.in_unused == 2
    assert unused_places(extension.vocabulary) == []


def test_a_part_of_many_words_comes_before_one_of_them():
    counts = Counter({f"abcd{end}{other}": 5 for end in LETTERS for other in LETTERS} | {"ebbe": 20})
    assert next(iter(extend_vocabulary(BASE, counts, 1).saved)) == "abcd"


def test_the_order_of_the_count_changes_nothing():
    counts = random_words(0)
    backwards = Counter(dict(reversed(list(counts.items()))))
    assert extend_vocabulary(BASE, counts, 20) == extend_vocabulary(BASE, backwards, 20)


def test_no_piece_is_added_that_saves_nothing_or_belongs_to_an_unknown_word():
    extension = extend_vocabulary(BASE, Counter({"a": 9, "xyz": 9, "ab": 1}), 5)
    assert (extension.saved, extension.vocabulary) == ({}, BASE)
    assert extension.tokens_before == extension.tokens_after == 9 + 9 + 2


@pytest.mark.parametrize("continues", [False, True])
def test_pieces_are_the_librarys(continues):
    words = random_words(1)
    vocabulary = extend_vocabulary(BASE, words, 8).vocabulary
    tokenizer = library_tokenizer(vocabulary, UNCASED)
    longest = max(map(len, vocabulary))
    for word in words:
        expected = tokenizer.encode(f"{'a' * continues}{word}", add_special_tokens=False).tokens
        if continues and expected[0] != "a":
            continue
        assert word_pieces(word, set(vocabulary), longest, continues) == expected[continues:]
    assert word_pieces("axb", set(vocabulary), longest) is None
