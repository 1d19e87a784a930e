"""int32 arrays that are shaped, joined and counted without int32 operations."""

import numpy as np
import tensorflow as tf

from bert_horovod.model.integers import joined, places_in_rows, reshaped

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
