"""The sum of one payload: the scale of the float16 wire."""

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.compressed.payload_parts import PayloadSum


def test_a_sum_may_be_a_thousand_times_as_large_as_the_one_before():
    payload_sum = PayloadSum(World(), 3, "float16", "toy")
    for numbers in ([1e-3, -2e-4, 0.0], [1.0, -0.5, 0.25]):
        total, lost = payload_sum.sum(tf.constant(numbers))
        assert lost is None
        np.testing.assert_allclose(total.numpy(), numbers, rtol=2.0**-11)


def test_after_an_overflow_the_next_sum_fits_and_the_scale_follows_small_numbers_in_the_end():
    payload_sum = PayloadSum(World(), 1, "float16", "toy")
    totals = [payload_sum.sum(tf.constant([1e3]))[0].numpy()[0] for _ in range(3)]
    assert not np.isfinite(totals[0])
    assert totals[2] == 1000.0
    for _ in range(40):
        total = payload_sum.sum(tf.constant([1e-7]))[0].numpy()[0]
    assert total == np.float32(np.float16(1e-7 * 2.0**34)) / 2.0**34
