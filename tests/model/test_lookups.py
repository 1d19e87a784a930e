"""int32 arrays that are shaped, joined and counted without int32 operations.

Gradients of looked-up tables, as a GPU adds them.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import lookups
from bert_horovod.model.lookups import joined, places_in_rows, reshaped

# The bits of a NaN that signals, of a denormal and of -0 as float32, which a float's operation might change.
ODD = np.array([[0x7F800001, -4194303, 1], [-(2**31), 2**31 - 1, -1]], np.int32)


def test_every_bit_stays_where_integers_are_shaped_and_joined():
    assert (reshaped(tf.constant(ODD), [-1]).numpy() == ODD.reshape(-1)).all()
    assert (joined([tf.constant(ODD), tf.constant(ODD[:, :1])], 1).numpy() == np.hstack([ODD, ODD[:, :1]])).all()


def test_places_count_through_the_rows_exactly():
    positions = np.random.default_rng(0).integers(0, 512, (1 << 15, 3), np.int32)
    places = places_in_rows(tf.constant(positions), 512).numpy()
    assert places.dtype == np.int32
    assert (places == (positions + 512 * np.arange(1 << 15)[:, None]).reshape(-1)).all()


ENTRIES, WIDTH = 11, 5


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(lookups, "has_gpu", lambda: True)


def expected(table: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    total = table.astype(np.float64)
    np.add.at(total, ids, rows.astype(np.float64))
    return total


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
@pytest.mark.parametrize("different", [1, 3, ENTRIES])
def test_rows_are_added_to_their_entries_whatever_their_number(count, different):
    random = np.random.default_rng(count)
    table = random.normal(size=(ENTRIES, WIDTH)).astype(np.float32)
    rows = random.normal(size=(count, WIDTH)).astype(np.float32)
    ids = random.integers(0, different, count, np.int32)
    total = lookups.add_rows(tf.constant(table), tf.constant(ids), tf.constant(rows)).numpy()
    assert np.abs(total - expected(table, ids, rows)).max() < 1e-5


def test_only_one_row_of_an_entry_is_not_zero_so_that_no_order_of_additions_matters():
    random = np.random.default_rng(0)
    ids = random.integers(0, ENTRIES, 100, np.int32)
    rows = random.normal(size=(100, WIDTH)).astype(np.float32)
    sorted_ids, sums = tf.function(lookups._summed, jit_compile=True)(tf.constant(ids), tf.constant(rows))
    for entry in range(ENTRIES):
        assert (sums.numpy()[sorted_ids.numpy()[:, 0] == entry] != 0).all(1).sum() == (entry in ids)


def test_a_small_table_has_the_gradient_of_a_sum_of_rows():
    random = np.random.default_rng(1)
    table = tf.constant(random.normal(size=(ENTRIES, WIDTH)).astype(np.float32))
    ids = random.integers(0, ENTRIES, (4, 6), np.int32)
    dy = random.normal(size=(4, 6, WIDTH)).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(table)
        x = lookups.looked_up(table, tf.constant(ids))
    assert (x.numpy() == table.numpy()[ids]).all()
    gradient = tape.gradient(x, table, tf.constant(dy)).numpy()
    zeros = np.zeros((ENTRIES, WIDTH), np.float32)
    assert np.abs(gradient - expected(zeros, ids.reshape(-1), dy.reshape(-1, WIDTH))).max() < 1e-5
