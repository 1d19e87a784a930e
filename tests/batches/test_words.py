"""Words of tokens; masked spans of words, against a plain transcription of the published procedure; words of a list."""

import random

import numpy as np
import pytest

from bert_horovod.batches.text.mask_rates import masked_count
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.batches.words import (
    WordBoundaries,
    Words,
    choose_spans,
    draw_lengths,
    find_words,
    read_priority_words,
)
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from tests.batches.reading import MASK, ORDINARY, WITH_PIECES, make_rows, unmasked
from tests.batches.text.test_masks import masked_places, per_sequence
from tests.toy_tokenizers import KINDS, TEXT, write_kind
from tests.toys import toy_recipe


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


def test_texts_are_for_people_and_words_are_told_apart_in_each_row(tmp_path):
    found = read_tokenizer(write_kind(tmp_path / "directory", "robertas"), None)
    words, library = WordBoundaries(found.vocabulary, found.settings), found.settings.library()
    ids = library.encode(" unbelievable cat", add_special_tokens=False).ids
    pieces = zip([words.texts[i] for i in ids], words.continues(np.array(ids)), strict=True)
    assert "".join(text if goes_on else f" {text}" for text, goes_on in pieces) == " unbelievable cat"
    rows = np.array(library.encode(TEXT[0], add_special_tokens=False).ids[:12]).reshape(3, 4)
    np.testing.assert_array_equal(words.continues(rows), np.stack([words.continues(row) for row in rows]))


LONGEST = 3


def spans_one_by_one(sizes, segments, order, lengths, budget) -> list[tuple[int, int]]:
    """The spans (first word, words) of one sequence, by the published procedure, but each within a segment.

    Args:
        sizes: tokens of each word.
        segments: the segment of each word.
        order: the words as they are tried.
        lengths: called with a word and the number of words left in its segment; returns the words drawn for the span.
        budget: the most tokens to mask.
    """
    spans, masked = [], set()
    for word in order:
        if sum(sizes[i] for i in masked) >= budget:
            break
        left = sum(1 for i in range(word, len(sizes)) if segments[i] == segments[word])
        n = lengths(word, left)
        while sum(sizes[i] for i in masked) + sum(sizes[word : word + n]) > budget and n > 1:
            n -= 1
        span = set(range(word, word + n))
        if sum(sizes[i] for i in masked) + sum(sizes[word : word + n]) > budget or span & masked:
            continue
        masked |= span
        spans.append((word, n))
    return spans


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_those_of_the_procedure_word_by_word(seed):
    generator = np.random.default_rng(seed)
    sequences = int(generator.integers(1, 12))
    counts = generator.integers(1, 60, sequences)
    sizes = generator.choice([1, 2, 3, 9], int(counts.sum()), p=[0.6, 0.2, 0.15, 0.05])
    first = np.append(0, np.cumsum(counts))
    cut = first[:-1] + generator.integers(0, counts) + 1  # where a second segment begins, if it is not the end
    segments = np.repeat(np.arange(sequences) * 2, counts)
    for low, high in zip(cut, first[1:], strict=True):
        segments[low:high] += 1
    left = np.array([np.count_nonzero(segments[i:] == segments[i]) for i in range(len(sizes))])
    lengths = draw_lengths(left, LONGEST, generator.random(len(sizes)))
    hashes = generator.integers(0, 1 << 63, len(sizes)).astype(np.uint64)
    start = np.cumsum(sizes) - sizes + 3 * segments  # [CLS], [SEP] lie between
    tokens = np.add.reduceat(sizes, first[:-1])
    budgets = masked_count(tokens, 0.15)
    computed = choose_spans(Words(start, sizes, left, first), lengths, hashes, budgets)
    expected = []
    for low, high, budget in zip(first[:-1], first[1:], budgets, strict=True):
        order = np.argsort(hashes[low:high])
        spans = spans_one_by_one(
            sizes[low:high].tolist(), segments[low:high].tolist(), order, lambda i, _, low=low: lengths[low + i], budget
        )
        for word, n in spans:
            for i in range(low + word, low + word + n):
                expected += range(start[i], start[i] + sizes[i])
        if not spans:  # no word fits: tokens of the first that was tried
            expected += range(start[low + order[0]], start[low + order[0]] + budget)
    assert computed.tolist() == sorted(expected)


def test_lengths_have_the_published_frequencies_and_stay_in_the_segment():
    draws = (np.arange(66_000) + 0.5) / 66_000
    three = [6 / 11, 3 / 11, 2 / 11]
    for left, expected in ((1, [1.0]), (2, [2 / 3, 1 / 3]), (3, three), (90, three)):
        lengths = draw_lengths(np.full(len(draws), left), LONGEST, draws)
        assert np.bincount(lengths)[1:] / len(draws) == pytest.approx(expected, abs=1e-4)
    assert draw_lengths(np.array([1, 2, 3]), LONGEST, np.full(3, np.nextafter(1, 0))).tolist() == [1, 2, 3]


def test_words_are_found_with_their_segments():
    # [CLS] the cat ##s [SEP] ##ting it [SEP] [CLS] a [SEP]
    maskable = np.array([[0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]], bool)
    begins = maskable.copy()
    begins[0, 3] = False
    sequence_ids = np.array([[1] * 8 + [2] * 3, [1] * 3 + [0] * 8])
    words = find_words(begins, maskable, sequence_ids)
    assert words.start.tolist() == [1, 2, 5, 6, 9, 12]
    assert words.size.tolist() == [1, 2, 1, 1, 1, 1]
    assert words.left.tolist() == [2, 1, 2, 1, 1, 1]
    assert words.first.tolist() == [0, 4, 5, 6]


@pytest.mark.parametrize(("packing", "whole_words"), [(True, True), (False, False)])
def test_rows_are_masked_as_by_the_published_procedure(make_store, packing, whole_words):
    """Runs of masked words, and masked tokens, are as frequent as in spans that Python's own generator draws."""
    store = make_store(sentences=200, vocabulary=WITH_PIECES)
    spans = {"whole_word_masking": whole_words, "ngram": LONGEST}
    rows = make_rows(store, 128, "sentence_order", packing, **spans)
    batch = rows.assemble(np.arange(1500))
    ids, masked = unmasked(batch), masked_places(batch)
    continues = np.array([whole_words and token.startswith("##") for token in WITH_PIECES])
    python = random.Random(1)
    computed, expected, tokens = np.zeros(12), np.zeros(12), np.zeros(2)
    for row in range(len(ids)):
        for number in range(1, int(batch["sequence_ids"][row].max()) + 1):
            places = np.flatnonzero(batch["sequence_ids"][row] == number)
            sizes, segments, hit, between = [], [], [], True
            for place in places:
                token = ids[row, place]
                if token < ORDINARY:
                    between = True
                    continue
                if between or not continues[token]:
                    sizes.append(0)
                    segments.append(batch["token_type_ids"][row, place])
                    hit.append(masked[row, place])
                    between = False
                sizes[-1] += 1
            budget = max(1, round(0.15 * sum(sizes)))
            count = int(masked[row, places].sum())
            assert count <= budget
            order = python.sample(range(len(sizes)), len(sizes))

            def drawn(_, left):
                n = range(1, min(LONGEST, left) + 1)
                return python.choices(n, [1 / i for i in n])[0]

            again = np.zeros(len(sizes), bool)
            for word, n in spans_one_by_one(sizes, segments, order, drawn, budget):
                again[word : word + n] = True
            if not again.any():
                assert min(sizes) > budget
                continue
            if not whole_words:
                assert count == budget  # a token more always fits
            tokens += count, np.array(sizes)[again].sum()
            computed += runs(hit, segments)
            expected += runs(again, segments)
    assert tokens[0] == pytest.approx(tokens[1], rel=0.005)
    assert computed[1:5].min() > 100
    # Each is a difference of two Poisson counts; runs of one sequence are not independent, so allow a little more.
    assert np.all(np.abs(computed - expected) < 5 * np.sqrt(computed + expected + 1))


def runs(hit, segments) -> np.ndarray:
    """Count the runs of masked words in a sequence by their length, within its segments; 11: 11 words or more."""
    counts, length = np.zeros(12), 0
    for i, masked in enumerate(hit):
        length = length + 1 if masked else 0
        if masked and (i + 1 == len(hit) or not hit[i + 1] or segments[i + 1] != segments[i]):
            counts[min(length, 11)] += 1
            length = 0
    return counts


CONTINUES = np.array([token.startswith("##") for token in WITH_PIECES])
# Of one piece; followed by a ## piece, another word.
WORDS = [f"word{number}" for number in range(992) if number % 5 == 2]
MASKINGS = pytest.mark.parametrize("kind", [{}, {"whole_word_masking": True}, {"whole_word_masking": True, "ngram": 3}])


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


@MASKINGS
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
