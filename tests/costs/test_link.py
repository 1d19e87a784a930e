"""Rings by arithmetic; fits are in test_buckets.py."""

import pytest

from bert_horovod.costs.link import Link, ring


def test_a_ring_has_the_latency_of_its_hops_and_sends_a_payload_almost_twice():
    link = ring(4, 1e9, 0.001)
    assert link.seconds(8e9) == pytest.approx(6 * 0.001 + 2 * 3 / 4 * 8)
    assert link.bytes_per_s(4) == pytest.approx(1e9)


def test_a_ring_of_one_takes_no_time():
    assert ring(1, 1e9, 0.001) == Link(0, 0)
