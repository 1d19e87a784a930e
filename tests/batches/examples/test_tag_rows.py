"""Tagged sentences as rows: windows of whole words, labels at first pieces, each word once."""

import json

import numpy as np
import pytest
import tokenizers

from bert_horovod.batches.examples.tag_rows import TaggedTokens, TagRows, cut_words, fitted, tokenised_words
from bert_horovod.batches.layout import SpecialIds
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from tests.toy_glue import WORDS
from tests.toy_tokenizers import NAMES, robertas, tokenizer_directory, write_kind


def starts(counts: np.ndarray | list[int]) -> np.ndarray:
    return np.append(0, np.cumsum(counts)).astype(np.int64)


def tokens(words: list[int], sentences: list[int]) -> TaggedTokens:
    """Words of so many pieces, in sentences of so many words."""
    random = np.random.default_rng(0)
    ids, labels = random.integers(5, 20, sum(words)), random.integers(0, 5, len(words))
    return TaggedTokens(ids.astype(np.int32), starts(words), starts(sentences), labels.astype(np.int32))


def drawn(seed: int) -> TaggedTokens:
    """Sentences of 1 to 39 words of 0 to 4 pieces, some of 40."""
    random = np.random.default_rng(seed)
    sentences = random.integers(1, 40, random.integers(1, 12))
    words = random.integers(0, 5, sentences.sum())
    words[random.random(len(words)) < 0.02] = 40
    words[0] = 1
    return tokens(words.tolist(), sentences.tolist())


def test_a_sentence_that_fits_is_one_window_and_a_longer_one_goes_on_after_half_a_row():
    windows = cut_words(tokens([1, 1, 1, 2, 1, 1, 1, 1, 1], [3, 6]), 6)
    assert [column.tolist() for column in windows] == [[0, 3, 4, 6], [3, 6, 8, 9], [0, 3, 5, 7], [3, 5, 7, 9]]


@pytest.mark.parametrize("seed", range(40))
def test_each_word_with_a_piece_belongs_to_the_window_where_it_has_most_context(seed):
    length = 8 + seed % 16
    fit = fitted(drawn(seed), length)
    windows, place = cut_words(fit, length), fit.word_starts
    sentence = np.repeat(np.arange(len(fit.sentence_starts) - 1), np.diff(fit.sentence_starts))
    assert (place[windows.end] - place[windows.begin]).max() <= length - 2
    assert (sentence[windows.begin] == sentence[windows.end - 1]).all()
    for word in np.flatnonzero(np.diff(place)):
        contexts = np.minimum(place[word] - place[windows.begin], place[windows.end] - place[word + 1])
        inside = (windows.begin <= word) & (word < windows.end)
        (mine,) = np.flatnonzero((windows.own_begin <= word) & (word < windows.own_end))
        assert inside[mine]
        assert contexts[mine] == contexts[inside].max()


def test_a_word_without_an_end_is_cut_to_a_row_and_others_stay_whole():
    long = tokens([2, 40, 3], [3])
    fit = fitted(long, 10)
    assert np.diff(fit.word_starts).tolist() == [2, 8, 3]
    assert fit.ids.tolist() == [*long.ids[:10], *long.ids[42:]]
    assert fitted(fit, 10) is fit


def test_a_sentence_without_pieces_has_no_window():
    assert cut_words(tokens([0, 0, 1], [2, 1]), 8).begin.tolist() == [2]


def test_each_word_is_tokenised_by_itself():
    made = tokenised_words([["films", "\u200b"], ["Good film"]], [[1, 2], []], Tokenizer(WORDS, UNCASED))
    film, s = WORDS.index("film"), WORDS.index("##s")
    assert made.ids.tolist() == [film, s, WORDS.index("good"), film]
    assert made.word_starts.tolist() == [0, 2, 2, 4]
    assert made.sentence_starts.tolist() == [0, 2, 3]
    assert made.labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", ["robertas", "xlm_robertas"])
def test_words_have_the_pieces_that_they_have_in_their_text(tmp_path, kind):
    found = read_tokenizer(write_kind(tmp_path / "tokenizer", kind), None)
    words = [["The", "cat", "sat", "on", "the", "dog"], ["An", "unbelievable", "tale"]]
    made = tokenised_words(words, [[0] * len(each) for each in words], Tokenizer(found.vocabulary, found.settings))
    library, bounds = found.settings.library(), made.word_starts[made.sentence_starts].tolist()
    for number, each in enumerate(words):
        whole = library.encode(" ".join(each), add_special_tokens=False).ids
        assert made.ids[bounds[number] : bounds[number + 1]].tolist() == whole


@pytest.mark.full
@pytest.mark.parametrize("prefix", [False, True])
def test_without_blanks_words_are_those_of_transformers(tmp_path, transformers, prefix):
    content = json.loads(robertas().to_str())
    content["pre_tokenizer"]["add_prefix_space"] = prefix
    settings = NAMES | {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": prefix}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    directory = tokenizer_directory(tmp_path / "tokenizer", tokenizer, **settings)
    found, words = read_tokenizer(directory, None), ["The", "cat", "sat"]
    peer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = peer(words, is_split_into_words=True, add_special_tokens=False).input_ids
    tokenizer = Tokenizer(found.vocabulary, found.settings)
    assert tokenised_words([words], [[]], tokenizer, blanks=False).ids.tolist() == expected
    assert (tokenised_words([words], [[]], tokenizer).ids.tolist() == expected) == prefix


SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)


def test_a_row_is_cls_words_sep_with_labels_at_first_pieces():
    source = TagRows(tokens([2, 0, 1], [3]), SPECIAL, 8)
    row = {name: array[0].tolist() for name, array in source.assemble(np.array([0])).items()}
    a, b, c = source.tokens.ids.tolist()
    first, _, last = source.tokens.labels.tolist()
    assert row == {
        "input_ids": [2, a, b, c, 3, 0, 0, 0],
        "token_type_ids": [0] * 8,
        "position_ids": [0, 1, 2, 3, 4, 0, 0, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 0, 0, 0],
        "labels": [0, first, 0, last, 0, 0, 0, 0],
        "weights": [0, 1, 0, 1, 0, 0, 0, 0],
    }


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_each_word_with_a_piece_counts_once_and_is_found_again(seed, packing):
    source = TagRows(drawn(seed), SPECIAL, 8 + seed, seed, packing)
    batch, places, fit = source.assemble(np.arange(source.count)), source.word_places(), source.tokens
    assert places.word.tolist() == np.flatnonzero(np.diff(fit.word_starts)).tolist()
    assert batch["weights"].sum() == len(places.word)
    assert batch["weights"][places.row, places.position].all()
    np.testing.assert_array_equal(
        batch["input_ids"][places.row, places.position], fit.ids[fit.word_starts[places.word]]
    )
    np.testing.assert_array_equal(batch["labels"][places.row, places.position], fit.labels[places.word])
    following = source.assemble(np.arange(source.count, 2 * source.count))
    assert following["weights"].sum() == len(places.word)
