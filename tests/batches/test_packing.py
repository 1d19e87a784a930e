import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.packing import fill, most_sequences, pack, single
from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.index_check import LARGE
from bert_horovod.corpus.store import open_store
from tests.batches.reading import index_windows, make_rows, token_documents
from tests.toys import prepare


def histogram(length: int, **counts: int) -> np.ndarray:
    bins = np.zeros(length + 1, np.int64)
    for name, count in counts.items():
        bins[int(name[1:])] = count
    return bins


def content(templates) -> dict[tuple[int, ...], int]:
    return {
        tuple(length for length in lengths if length): rows
        for rows, lengths in zip(templates.rows.tolist(), templates.lengths.tolist(), strict=True)
    }


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"n90": 2, "n38": 2}, {(90, 38): 2}),
        ({"n90": 1, "n38": 3}, {(90, 38): 1, (38, 38): 1}),
        # 20 goes to the row that it fills, not to the first row with room
        ({"n90": 1, "n108": 1, "n20": 1}, {(90,): 1, (108, 20): 1}),
        ({"n40": 7}, {(40, 40, 40): 2, (40,): 1}),
        ({"n128": 3}, {(128,): 3}),
        ({"n8": 17}, {(8,) * 16: 1, (8,): 1}),
        ({"n4": 33}, {(4,) * 16: 2, (4,): 1}),  # at most one sequence for eight positions
    ],
)
def test_lengths_are_packed_where_they_fit_best(counts, expected):
    assert content(pack(histogram(128, **counts), 128)) == expected


@pytest.mark.parametrize("length", [8, 31, 128, 512])
@pytest.mark.parametrize("seed", range(5))
def test_every_sequence_has_a_place_and_no_row_is_too_full(length, seed):
    random = np.random.default_rng(seed)
    counts = random.integers(0, 10 ** random.integers(1, 9), length + 1) * (random.random(length + 1) < 0.7)
    counts[:3] = 0
    templates = pack(counts, length)
    assert np.all(templates.lengths.sum(axis=1) <= length)
    assert np.all((templates.lengths > 0).sum(axis=1) <= most_sequences(length))
    assert np.all(templates.rows > 0)
    used = np.bincount(
        templates.lengths.ravel(),
        weights=np.repeat(templates.rows, templates.lengths.shape[1]).astype(float),
        minlength=length + 1,
    )
    assert np.array_equal(used[1:], counts[1:])
    # The table grows with the number of different lengths, not with the number of sequences.
    assert len(templates.rows) <= 4 * length
    again = pack(counts, length)
    assert np.array_equal(again.lengths, templates.lengths)
    assert np.array_equal(again.rows, templates.rows)


def test_unpacked_rows_hold_one_sequence_each():
    assert content(single(histogram(32, n5=3, n32=2))) == {(5,): 3, (32,): 2}
    assert fill(single(histogram(32, n16=4, n32=4)), 32) == 0.75


@pytest.mark.parametrize("length", [8, 16, 128, 512, 65535])
def test_slots_for_sequences_are_bounded(length):
    assert 1 <= most_sequences(length) <= min(64, length // 8)


LONG = {"shards": 2, "documents": 30, "sections": 1, "sentences": 1200, "longest": 50}
SHORT = {"shards": 2, "documents": 2000, "sections": 1, "sentences": 15, "longest": 50}


@pytest.mark.parametrize("sizes", [LONG, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("pair", ["next_sentence", "none"])
def test_packed_rows_are_full_on_long_and_on_short_documents(make_store, sizes, pair):
    store = make_store(**sizes)
    rows = make_rows(store, 512, pair)
    index = open_index(store, 512, pair, True)
    batch = rows.assemble(np.arange(rows.count))
    assert np.mean(batch["sequence_ids"] > 0) >= 0.97
    assert np.mean(batch["sequence_ids"] > 0) == pytest.approx(fill(index.templates, 512))
    unpacked = make_rows(store, 512, pair, packing=False).assemble(np.arange(1000))
    assert np.mean(unpacked["sequence_ids"] > 0) < 0.97
    size = sum(file.stat().st_size for file in index.path.glob("*/*"))
    assert size <= 0.1 * sum(file.stat().st_size for file in store.path.glob("shard-*"))
    if sizes is LONG:  # few tokens are in short windows
        length = np.diff(np.sort([window.start for window in index_windows(index, store)]))
        assert np.sum(length[length < 64]) < 0.06 * np.sum(length)


def test_the_order_takes_little_private_memory_and_its_windows_none(make_store):
    store = make_store(**SHORT)
    make_rows(store, 512)  # which makes the index
    tracemalloc.start()
    try:
        rows = make_rows(store, 512)
        private_bytes = tracemalloc.get_traced_memory()[0]  # without what is mapped from files
    finally:
        tracemalloc.stop()
    maps = Path("/proc/self/maps").read_text()
    assert all(f"{rows._index.path}/train/{name}.npy" in maps for name in LARGE)
    # Private memory grows with the table of templates: at most 4 for each length (above), 64 sequences wide.
    assert 1000 < private_bytes < 1 << 21 < 3 * (4 * 512 * 64 * 8)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order", "none"])
def test_each_token_is_in_one_row_an_epoch(make_store, pair, packing):
    store = make_store(held_out=0.3, longest=60)
    seen = np.zeros(len(token_documents(store)), int)
    for split in ("train", "held_out"):
        rows = make_rows(store, 48, pair, packing, split=split)
        windows = rows.windows(np.arange(rows.count, 2 * rows.count))
        windows = windows[windows >= 0]
        assert np.array_equal(np.sort(windows), np.arange(rows._index.windows))
        for start, first, second in index_windows(rows._index, store):
            seen[start : start + first + second] += 1
    assert np.all(seen == 1)


def test_packed_rows_of_512_are_full_on_real_books(shared_data, tmp_path):
    books = [str(path) for path in sorted((shared_data / "books").glob("*.gz"))[:8]]
    prepare(books, shared_data / "vocab" / "bert-base-uncased-vocab.txt", tmp_path / "store")
    store = open_store(tmp_path / "store")
    for pair in ("next_sentence", "none"):
        assert fill(open_index(store, 512, pair, True).templates, 512) >= 0.97
        assert fill(open_index(store, 512, pair, False).templates, 512) < 0.96
