"""Rings by arithmetic; fits are in test_buckets.py."""

import pytest

from bert_horovod.costs.exchanges import LINKS, Fabric, Link, link_of_hosts, ring, two_step
from bert_horovod.recipe.sections import REDUCTIONS


def test_a_ring_has_the_latency_of_its_hops_and_sends_a_payload_almost_twice():
    link = ring(4, 1e9, 0.001)
    assert link.seconds(8e9) == pytest.approx(6 * 0.001 + 2 * 3 / 4 * 8)
    assert link.bytes_per_s(4) == pytest.approx(1e9)


def test_a_ring_of_one_takes_no_time():
    assert ring(1, 1e9, 0.001) == Link(0, 0) == two_step(1, 1e9, 0.001)


def test_two_steps_send_a_rings_bytes_with_fewer_hops():
    link = two_step(4, 1e9, 0.001)
    assert link.s_per_byte == ring(4, 1e9, 0.001).s_per_byte
    assert link.latency_s == pytest.approx((1 + 3) * 0.001)  # all at once, and a ring


def test_each_way_to_sum_has_a_link():
    assert set(LINKS) == {way for ways in REDUCTIONS.values() for way in ways}


BETWEEN, INSIDE = Fabric(1e9, 1e-3), Fabric(8e9, 1e-5)


def test_small_sums_go_by_trees_and_large_ones_by_rings():
    link = link_of_hosts("ring", 32, 1, BETWEEN, INSIDE)
    assert link.seconds(1) == pytest.approx(2 * 5 * 1e-3, rel=1e-3)
    assert link.seconds(1e9) == ring(32, *BETWEEN).seconds(1e9)
    sizes = [10**i for i in range(10)]
    assert all(link.seconds(size) <= ring(32, *BETWEEN).seconds(size) for size in sizes)
    assert link.slower(2).seconds(1e9) == ring(32, 5e8, 1e-3).seconds(1e9)
    assert link.slower(2).tree == pytest.approx((1e-2, 2 * link.tree[1]))


def test_a_host_alone_uses_its_own_fabric():
    for way, link in LINKS.items():
        assert link_of_hosts(way, 8, 8, BETWEEN, INSIDE) == link(8, *INSIDE)


def test_a_ring_of_hosts_is_as_fast_as_its_slowest_hop():
    assert link_of_hosts("ring", 16, 8, BETWEEN, INSIDE)[:2] == ring(16, *BETWEEN)[:2]
    slow = INSIDE._replace(bytes_per_s=5e8)
    assert link_of_hosts("ring", 16, 8, BETWEEN, slow)[:2] == ring(16, 5e8, 1e-3)[:2]


def test_in_two_steps_a_hosts_ranks_all_send_at_once_unless_they_sum_first():
    # 8 ranks on each of 2 hosts: each sends a sixteenth to the 8 of the other; then the sums go round as in a ring.
    flat = link_of_hosts("two_step", 16, 8, BETWEEN, INSIDE, number_bytes=1.0)
    assert flat.s_per_byte == pytest.approx((8 * 8 / 16 + 15 / 16) / 1e9)
    first = link_of_hosts("two_step", 16, 8, BETWEEN, INSIDE, by_host=True, number_bytes=1.0)
    # Inside: float32 sums of a ring, and a gather of what is encoded; across: two hosts in two steps.
    assert first.s_per_byte == pytest.approx(4 * 2 * 7 / 8 / 8e9 + 2 * 1 / 2 / 1e9 + 7 / 8 / 8e9)
    assert first.s_per_byte < flat.s_per_byte
    assert link_of_hosts("two_step", 16, 1, BETWEEN, INSIDE) == two_step(16, *BETWEEN)
