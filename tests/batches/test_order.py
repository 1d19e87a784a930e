import numpy as np
import pytest

from bert_horovod.batches.order import keyed_hash, permute


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 1000, 4097])
def test_permute_is_a_bijection(n):
    for key in (0, 1, 2**64 - 1):
        assert np.array_equal(np.sort(permute(np.arange(n), n, key)), np.arange(n))


def test_permute_of_a_subset_equals_the_whole():
    permuted = permute(np.arange(1000), 1000, 7)
    subset = np.array([[3, 999], [0, 500]])
    assert np.array_equal(permute(subset, 1000, 7), permuted[subset])


def test_permute_takes_one_key_per_element():
    index = np.arange(300)
    keys = np.where(index % 2, 5, 6).astype(np.uint64)
    expected = np.where(index % 2, permute(index, 300, 5), permute(index, 300, 6))
    assert np.array_equal(permute(index, 300, keys), expected)


def test_permute_takes_one_size_per_element():
    sizes = np.repeat([1, 2, 65, 1000], [1, 2, 65, 1000])
    index = np.concatenate([np.arange(size) for size in (1, 2, 65, 1000)])
    expected = np.concatenate([permute(np.arange(size), size, 3) for size in (1, 2, 65, 1000)])
    assert np.array_equal(permute(index, sizes, 3), expected)


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
