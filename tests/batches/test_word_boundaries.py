"""Words of tokens: ## in BERT's WordPiece, the tokenizer's own words in all others."""

import numpy as np
import pytest

from bert_horovod.batches.word_boundaries import WordBoundaries
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from tests.toy_tokenizers import KINDS, TEXT, write_kind


def test_pieces_that_go_on_with_a_word_begin_with_two_hashes():
    words = WordBoundaries(["[PAD]", "[UNK]", "a", "##b", "##", "#"], UNCASED)
    assert words.continues(np.array([2, 3, 3, 4, 5, 3])).tolist() == [False, True, True, False, False, True]
    assert words.texts == ["[PAD]", "[UNK]", "a", "b", "##", "#"]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_tokenizer(tmp_path, kind):
    found = read_tokenizer(write_kind(tmp_path / "directory", kind), None)
    words, library = WordBoundaries(found.vocabulary, found.settings), found.settings.library()
    for text in TEXT:
        encoding = library.encode(text.replace("'s", "").replace("n't", ""), add_special_tokens=False)
        of_library = np.diff(encoding.word_ids) == 0
        mine = words.continues(np.array(encoding.ids))[1:]
        np.testing.assert_array_equal(mine, of_library, str(encoding.tokens))


def test_texts_are_for_people(tmp_path):
    found = read_tokenizer(write_kind(tmp_path / "directory", "robertas"), None)
    words = WordBoundaries(found.vocabulary, found.settings)
    ids = found.settings.library().encode(" unbelievable cat", add_special_tokens=False).ids
    joined = "".join(
        text if goes_on else f" {text}"
        for text, goes_on in zip([words.texts[i] for i in ids], words.continues(np.array(ids)), strict=True)
    )
    assert joined == " unbelievable cat"


def test_rows_of_words_are_told_apart_in_each_row(tmp_path):
    found = read_tokenizer(write_kind(tmp_path / "directory", "robertas"), None)
    words = WordBoundaries(found.vocabulary, found.settings)
    ids = np.array(found.settings.library().encode(TEXT[0], add_special_tokens=False).ids[:12]).reshape(3, 4)
    np.testing.assert_array_equal(words.continues(ids), np.stack([words.continues(row) for row in ids]))
