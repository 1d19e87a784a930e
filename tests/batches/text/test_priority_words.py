"""Words of a list are masked before all others, and rows are then those of another data set."""

import numpy as np
import pytest

from bert_horovod.batches.text.mask_rates import masked_count
from bert_horovod.batches.text.priority_words import read_priority_words
from bert_horovod.batches.text.rows import StoreDataset
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from tests.batches.reading import MASK, ORDINARY, WITH_PIECES, make_rows, unmasked
from tests.batches.text.test_masks import masked_places, per_sequence
from tests.toys import toy_recipe

CONTINUES = np.array([token.startswith("##") for token in WITH_PIECES])
WORDS = [
    f"word{number}" for number in range(992) if number % 5 == 2
]  # of one piece; followed by a ## piece, another word
KINDS = pytest.mark.parametrize("kind", [{}, {"whole_word_masking": True}, {"whole_word_masking": True, "ngram": 3}])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "terms.txt"
    path.write_text("\n".join([*WORDS, "", "word3piece5"]) + "\n", encoding="utf-8")
    return path


def words(ids: np.ndarray) -> list[list[tuple[int, int]]]:
    """A row's words, each as its places and ids: in plain loops."""
    found: list[list[tuple[int, int]]] = []
    for place, number in enumerate(ids):
        if number >= ORDINARY:
            if CONTINUES[number] and place and ids[place - 1] >= ORDINARY:
                found[-1].append((place, number))
            else:
                found.append([(place, number)])
    return found


def listed(word: list[tuple[int, int]]) -> bool:
    text = WITH_PIECES[word[0][1]] + "".join(WITH_PIECES[number].removeprefix("##") for _, number in word[1:])
    return text in (*WORDS, "word3piece5")


@KINDS
def test_words_of_the_list_are_masked_first_and_as_many_tokens_as_ever(make_store, file, kind):
    store = make_store(sentences=100, vocabulary=WITH_PIECES)
    batch = make_rows(store, 64, priority_words=str(file), **kind).assemble(np.arange(60))
    ids, masked = unmasked(batch), masked_places(batch)
    budgets = per_sequence(batch, masked)
    assert np.all(budgets <= masked_count(per_sequence(batch, ids >= ORDINARY), 0.15))
    first = others = 0
    for row in range(len(ids)):
        for sequence in range(1, batch["sequence_ids"][row].max() + 1):
            mine = [word for word in words(ids[row]) if batch["sequence_ids"][row][word[0][0]] == sequence]
            hit = [[masked[row, place] for place, _ in word] for word in mine]
            of_list = [listed(word) for word in mine]
            first += sum(sum(flags) for flags, yes in zip(hit, of_list, strict=True) if yes)
            others += sum(sum(flags) for flags, yes in zip(hit, of_list, strict=True) if not yes)
            if not kind and any(any(flags) for flags, yes in zip(hit, of_list, strict=True) if not yes):
                assert all(all(flags) for flags, yes in zip(hit, of_list, strict=True) if yes)
    assert first > others / 3 > 0  # they are an eighth of the words
    used = batch["masked_weights"] > 0
    shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)[used]
    assert abs(np.mean(shown == MASK) - 0.8) < 0.05


def test_a_word_of_several_pieces_is_found_whole(tmp_path):
    (tmp_path / "terms.txt").write_text("word3piece5\n")
    priority = read_priority_words(str(tmp_path / "terms.txt"), WITH_PIECES, UNCASED)
    ids = {token: number for number, token in enumerate(WITH_PIECES)}
    tokens = ["[CLS]", "word3", "##piece5", "word3", "##piece5", "##piece6", "word3", "word4", "##piece5", "[SEP]"]
    row = np.array([[ids[token] for token in tokens]], np.int32)
    starts = np.array([[0, 1, 1, 3, 3, 3, 6, 7, 7, 9]])
    places = priority.places(row, starts, row >= ORDINARY)
    assert np.flatnonzero(places).tolist() == [1, 2]


def test_without_a_list_nothing_is_read():
    assert read_priority_words("", WITH_PIECES, UNCASED) is None


def test_a_run_goes_on_only_with_the_same_words(make_store, file):
    store = make_store(vocabulary=WITH_PIECES)
    hashes = [StoreDataset(store, toy_recipe()).hash]
    recipe = toy_recipe(objective={"priority_words": str(file)})
    for text in ("word2\nword7\n", "word7\n\nword2\n", "word2\n"):
        file.write_text(text)
        hashes.append(StoreDataset(store, recipe).hash)
    assert hashes[0] == store.hash
    assert hashes[1] == hashes[2]
    assert len(set(hashes)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"terms\.txt': cannot read it \(No such file or directory\); expected a file of words"),
        (b"", "has no words"),
        (b"word2\nword3 word4\n", r"line 2: 'word3 word4' is several words to the tokenizer \(word3 word4\)"),
        (b"strange\n", r"line 1: the vocabulary reads 'strange' as \[UNK\]; remove it"),
        (b"\xff\n", "is not UTF-8 text"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_by_its_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "terms.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"objective\.priority_words = .*{message}"):
        read_priority_words(str(tmp_path / "terms.txt"), WITH_PIECES, UNCASED)
