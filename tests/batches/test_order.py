"""The order of rows, their places among ranks and micro-batches, and the ids that rows need."""

import numpy as np
import pytest

from bert_horovod.batches.layout import ordinary_ids, special_ids
from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.batches.positions import micro_batch_count, step_positions
from bert_horovod.errors import UserError


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 1000, 4097])
def test_permute_is_a_bijection(n):
    for key in (0, 1, 2**64 - 1):
        assert np.array_equal(np.sort(permute(np.arange(n), n, key)), np.arange(n))


def test_permute_takes_any_elements_and_a_key_or_a_size_for_each():
    permuted = permute(np.arange(1000), 1000, 7)
    subset = np.array([[3, 999], [0, 500]])
    assert np.array_equal(permute(subset, 1000, 7), permuted[subset])
    index = np.arange(300)
    keys = np.where(index % 2, 5, 6).astype(np.uint64)
    expected = np.where(index % 2, permute(index, 300, 5), permute(index, 300, 6))
    assert np.array_equal(permute(index, 300, keys), expected)
    each = [np.arange(size) for size in (1, 2, 65, 1000)]
    expected = np.concatenate([permute(part, len(part), 3) for part in each])
    sizes = np.repeat([1, 2, 65, 1000], [1, 2, 65, 1000])
    assert np.array_equal(permute(np.concatenate(each), sizes, 3), expected)


def test_permute_leaves_no_order_behind():
    moved = permute(np.arange(10_000), 10_000, 1)
    assert abs(np.corrcoef(np.arange(10_000), moved)[0, 1]) < 0.04
    assert np.count_nonzero(np.diff(moved) == 1) < 10
    assert np.count_nonzero(moved == permute(np.arange(10_000), 10_000, 2)) < 10


def test_permute_sends_each_element_everywhere():
    keys = keyed_hash(0, index=np.arange(70_000, dtype=np.uint64))
    seen = np.bincount(permute(np.full(70_000, 3), 7, keys), minlength=7)
    assert np.all(np.abs(seen - 10_000) < 500)


def test_permute_refuses_what_is_outside():
    for index in (5, -1):
        with pytest.raises(ValueError, match=r"\[0, n\)"):
            permute(np.array([index]), 5, 0)
    with pytest.raises(ValueError, match=r"\[0, n\)"):
        permute(np.array([2, 2]), np.array([3, 2]), 0)


def test_keyed_hash_bits_are_fair_and_streams_differ():
    index = np.arange(20_000, dtype=np.uint64)
    first, second = keyed_hash(1, 2, index=index), keyed_hash(1, 3, index=index)
    for words in (first, second, first ^ second, first ^ keyed_hash(2, 2, index=index), first[1:] ^ first[:-1]):
        bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert np.all(np.abs(bits - 0.5) < 0.02)


def test_orders_never_change():
    # A run that is resumed with a later version must see the same rows.
    words = keyed_hash(1, 2, 3, index=np.array([0, 1, 2**40], np.uint64))
    assert words.tolist() == [0xBF3F2DE408FE6EB2, 0x12588D809DCE88A7, 0x60A782261FB33643]
    assert permute(np.arange(10), 10, 1).tolist() == [7, 6, 1, 9, 3, 0, 5, 8, 2, 4]


LAYOUTS = [
    (batch, ranks, micro_batch)
    for batch in (1, 2, 7, 16, 31, 64, 97, 256)
    for ranks in (1, 2, 3, 5, 7, 16, 31)
    for micro_batch in (1, 2, 3, 4, 8, 13, 300)
    if batch >= ranks
]


@pytest.mark.parametrize(("batch", "ranks", "micro_batch"), LAYOUTS)
def test_each_position_is_taken_once_over_all_ranks(batch, ranks, micro_batch):
    taken, per_rank = [], []
    for rank in range(ranks):
        parts = step_positions(3, batch, rank, ranks, micro_batch)
        assert len(parts) == micro_batch_count(batch, ranks, micro_batch)
        real = 0
        for positions, first in parts:
            assert positions.shape == (micro_batch,)
            assert positions.dtype == np.int64
            rows = positions[positions >= 0]
            assert np.array_equal(rows, 3 * batch + first + np.arange(len(rows)))
            assert np.all(positions[len(rows) :] == -1)
            assert 0 <= first <= batch
            taken += rows.tolist()
            real += len(rows)
        per_rank.append(real)
    assert sorted(taken) == list(range(3 * batch, 4 * batch))
    assert max(per_rank) - min(per_rank) <= 1


def test_micro_batch_count_is_the_smallest_that_holds_the_batch():
    assert micro_batch_count(64, 2, 8) == 4
    assert micro_batch_count(65, 2, 8) == 5
    assert micro_batch_count(2, 2, 8) == 1


WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "##", "#"]


def test_special_tokens_are_found_by_name_and_the_rest_is_ordinary():
    special = special_ids(WORDS)
    assert (special.pad, special.unknown, special.cls, special.sep, special.mask) == (0, 2, 3, 4, 5)
    assert ordinary_ids(WORDS, special).tolist() == [6, 7, 8, 9]


def test_a_vocabulary_without_special_or_ordinary_tokens_is_refused():
    with pytest.raises(UserError, match=r"no \[CLS\], \[MASK\]"):
        special_ids(["[PAD]", "[UNK]", "[SEP]", "a"])
    with pytest.raises(UserError, match="no ordinary tokens"):
        ordinary_ids(WORDS[:6], special_ids(WORDS[:6]))
