import itertools

import numpy as np
import pytest

from bert_horovod.batches.text.cutting import SHORT_TOKENS, Cutter, Windows
from bert_horovod.corpus.shard import Shard


def plain_windows(shard: Shard, limit: int, chosen) -> list[tuple[int, list[int], int]]:
    """First token, sentence ends from there and document of each window, by a plain loop."""
    windows = []
    for section in np.flatnonzero(chosen):
        pieces = []
        for sentence in range(shard.sections[section], shard.sections[section + 1]):
            start, end = int(shard.sentences[sentence]), int(shard.sentences[sentence + 1])
            pieces += [(at, min(at + limit, end)) for at in range(start, end, limit)]
        while pieces:
            start = pieces[0][0]
            inside = [end - start for _, end in pieces if end - start <= limit]
            document = sum(int(first) <= section for first in shard.documents) - 1
            windows.append((start, inside, document))
            pieces = pieces[len(inside) :]
    return windows


def all_of(shard: Shard) -> np.ndarray:
    return np.ones(len(shard.sections) - 1, bool)


def spans(windows: Windows) -> np.ndarray:
    """First and last token (exclusive) of each window."""
    return np.stack([windows.start, windows.start + windows.first + windows.second], axis=1)


@pytest.mark.parametrize("limit", [5, 13, 32, 128, 2000])
@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order", "none"])
def test_windows_are_those_of_a_plain_loop(make_store, limit, pair):
    for shard in make_store(held_out=0.3).shards:
        chosen = ~shard.held_out
        windows = Cutter(shard, limit).windows(chosen, pair, 0.0)
        expected = plain_windows(shard, limit, chosen)
        assert spans(windows).tolist() == [[start, start + ends[-1]] for start, ends, _ in expected]
        assert windows.document.tolist() == [document for *_, document in expected]
        for first, second, (_, ends, _) in zip(windows.first, windows.second, expected, strict=True):
            # Split at an inner sentence end, or a single segment where there is none.
            assert first in (ends[:-1] if pair != "none" and len(ends) > 1 else ends[-1:])
            if pair == "sentence_order" and len(ends) > 1:  # the one nearest to the middle, the earlier of two
                assert first == min(ends[:-1], key=lambda end, last=ends[-1]: abs(2 * end - last))
            assert first + second == ends[-1]


def test_second_segments_take_the_length_that_comes_first_in_one_order_for_all(make_store):
    shard = make_store(shards=1, documents=60, longest=9).shards[0]
    windows = Cutter(shard, 29).windows(all_of(shard), "next_sentence", 0.0)
    before = set()  # (a, b): length a was taken where length b was possible
    for second, (_, ends, _) in zip(windows.second.tolist(), plain_windows(shard, 29, all_of(shard)), strict=True):
        before |= {(second, ends[-1] - end) for end in ends[:-1] if ends[-1] - end != second}
    assert len(before) > 100
    assert not {(b, a) for a, b in before} & before
    # So few lengths are common: most windows take one of a quarter of the lengths.
    taken = np.sort(np.bincount(windows.second[windows.second > 0], minlength=29))[::-1]
    assert taken[:7].sum() > 0.5 * taken.sum()


def test_windows_are_drawn_short_where_a_section_goes_on(make_store):
    shard = make_store(shards=1, documents=20, sentences=400, longest=100).shards[0]
    limit = 200
    plain = Cutter(shard, limit).windows(all_of(shard), "none", 0.0)
    windows = Cutter(shard, limit).windows(all_of(shard), "none", 0.5)
    section_start = shard.sentences[shard.sections]
    goes_on = section_start[np.searchsorted(section_start, windows.start, "right")] - windows.start > limit
    greedy = {(start, start + ends[-1]) for start, ends, _ in plain_windows(shard, limit, all_of(shard))}
    sentence = {tuple(pair) for pair in np.stack([shard.sentences[:-1], shard.sentences[1:]], axis=1).tolist()}
    short = (windows.first <= SHORT_TOKENS) & goes_on
    assert all(tuple(span) in sentence for span in spans(windows)[short].tolist())
    # Of the sentences that begin a window and are short enough, half are drawn.
    sentence_end = shard.sentences[np.searchsorted(shard.sentences, windows.start, "right")]
    enough = goes_on & (sentence_end - windows.start <= SHORT_TOKENS)
    assert short.sum() > 300
    assert 0.46 < short.sum() / enough.sum() < 0.54
    assert len(windows.start) > len(plain.start)
    assert greedy - {tuple(span) for span in spans(windows).tolist()}
    # Every token is in exactly one window still.
    assert np.array_equal(spans(windows)[1:, 0], spans(windows)[:-1, 1])
    assert spans(windows)[[0, -1], [0, 1]].tolist() == [0, len(shard.tokens)]


def test_draws_depend_on_the_place_in_the_store(make_store):
    shard = make_store(shards=1, documents=20, sentences=400).shards[0]
    one, same, other = (Cutter(shard, 100, base).windows(all_of(shard), "none", 0.5) for base in (0, 0, 1000))
    assert np.array_equal(one.start, same.start)
    assert set(one.start) != set(other.start)


def test_a_shard_without_documents_is_passed_over():
    empty = np.zeros(1, np.uint32)
    hashes, titles = np.zeros((0, 2), np.uint64), np.zeros(0, np.uint8)
    shard = Shard(np.zeros(0, np.uint16), empty, empty, empty, np.zeros(0, bool), hashes, titles)
    for pair, share in itertools.product(("next_sentence", "sentence_order", "none"), (0.0, 0.5)):
        windows = Cutter(shard, 5).windows(np.zeros(0, bool), pair, share)
        assert [len(array) for array in vars(windows).values()] == [0] * 5
