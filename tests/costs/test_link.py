"""Rings by arithmetic; fits are in test_buckets.py."""

import pytest

from bert_horovod.costs.link import LINKS, Link, reductions, ring, two_step
from bert_horovod.recipe.sections import REDUCTIONS
from tests.toys import toy_recipe


def test_a_ring_has_the_latency_of_its_hops_and_sends_a_payload_almost_twice():
    link = ring(4, 1e9, 0.001)
    assert link.seconds(8e9) == pytest.approx(6 * 0.001 + 2 * 3 / 4 * 8)
    assert link.bytes_per_s(4) == pytest.approx(1e9)


def test_a_ring_of_one_takes_no_time():
    assert ring(1, 1e9, 0.001) == Link(0, 0) == two_step(1, 1e9, 0.001)


def test_two_steps_send_a_rings_bytes_with_fewer_hops():
    found = two_step(4, 1e9, 0.001)
    assert found.s_per_byte == ring(4, 1e9, 0.001).s_per_byte
    assert found.latency_s == pytest.approx((1 + 3) * 0.001)  # all at once, and a ring


@pytest.mark.parametrize(
    ("wire", "execution", "expected"),
    [
        ("float32", {"bucket_bytes": "auto"}, ("ring",)),
        ("float16", {"bucket_bytes": "auto"}, ("ring", "two_step")),
        ("float16", {"bucket_bytes": 1000}, ("ring",)),
        ("float16", {"bucket_bytes": 1000, "reduction": "two_step"}, ("two_step",)),
        ("float16", {"bucket_bytes": "auto", "reduction": "ring"}, ("ring",)),
        ("int8", {"bucket_bytes": 1000}, ("two_step",)),
    ],
)
def test_ways_to_sum_are_open_where_they_are_measured_and_the_recipe_names_none(wire, execution, expected):
    assert reductions(toy_recipe(numerics={"wire": wire}, execution=execution)) == expected


def test_each_way_to_sum_has_a_link():
    assert set(LINKS) == {way for ways in REDUCTIONS.values() for way in ways}
