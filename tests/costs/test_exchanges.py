"""Rings by arithmetic.

What the exchanges themselves say that a rank sends, and shares of steps against counting.
"""

import dataclasses
import math
from typing import Any

import pytest

from bert_horovod.costs.exchanges import (
    LINKS,
    Fabric,
    Link,
    link_of_hosts,
    ring,
    sent_bytes,
    sent_shapes,
    stages,
    two_step,
)
from bert_horovod.exchange.methods import METHODS
from bert_horovod.measuring.synthetic import LoneRank
from bert_horovod.recipe.sections import REDUCTIONS, Recipe, reductions
from tests.exchange.moments import BUCKETS, SHAPES, Toy
from tests.toys import exchange_of, more_rows, toy_recipe


def test_a_ring_sends_a_payload_almost_twice_and_two_steps_as_much_with_fewer_hops():
    link = ring(4, 1e9, 0.001)
    assert link.seconds(8e9) == pytest.approx(6 * 0.001 + 2 * 3 / 4 * 8)
    assert link.bytes_per_s(4) == pytest.approx(1e9)
    in_two_steps = two_step(4, 1e9, 0.001)
    assert in_two_steps.s_per_byte == link.s_per_byte
    assert in_two_steps.latency_s == pytest.approx((1 + 3) * 0.001)  # all at once, and a ring
    assert ring(1, 1e9, 0.001) == Link(0, 0) == two_step(1, 1e9, 0.001)
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


STEPS = 32
RARE = {"checkpoint_steps": STEPS, "consistency_steps": 0}
LOCAL = {"method": "parameters", "interval": 4}
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"numerics": {"wire": "float16"}},
    "float16 in two steps": {"numerics": {"wire": "float16"}, "execution": RARE | {"reduction": "two_step"}},
    "int8": {"numerics": {"wire": "int8"}},
    "chunks": {"exchange": {"method": "largest_chunks", "dense": 0.4}},
    "chunks of halves": {
        "exchange": {"method": "largest_chunks", "dense": 0.4},
        "numerics": {"wire": "float16"},
    },
    "powersgd": {"exchange": {"method": "powersgd", "rank": 1, "dense": 0.4}, "numerics": {"wire": "float16"}},
    "powersgd, int8": {"exchange": {"method": "powersgd", "rank": 1, "dense": 0.4, "dense_wire": "int8"}},
    "powersgd, chunks": {"exchange": {"method": "powersgd", "rank": 1, "dense": 0.4, "words": "largest_chunks"}},
    "onebit_adam": {"exchange": {"method": "onebit_adam", "dense": 0.4}, "numerics": {"wire": "float16"}},
    "onebit_lamb": {"exchange": {"method": "onebit_lamb", "dense": 0.4}, "optimizer": {"name": "lamb"}},
    "parameters": {"exchange": LOCAL},
    "parameters of sgd": {"exchange": LOCAL, "optimizer": {"name": "sgd"}},
    "dreamddp": {"exchange": {"method": "dreamddp", "interval": 4, "full_interval": 8}},
    "diloco": {"exchange": {"method": "diloco", "interval": 4}, "numerics": {"wire": "float16"}},
    "diloco with a delay": {"exchange": {"method": "diloco", "interval": 8, "fragments": 2, "delay": 4}},
    **more_rows("rows.SENT"),
}


def case_recipe(case: str) -> Recipe:
    return toy_recipe(**({"execution": RARE, "phase": {"steps": STEPS, "warmup": 0.0}} | CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_a_rank_sends_what_its_exchange_says(case):
    recipe = case_recipe(case)
    toy = Toy(LoneRank(2), recipe)
    step_bytes = []
    for step in range(1, STEPS + 1):
        step_bytes.append(toy.exchange.wire_bytes())  # of the step that comes
        toy.state.progress.count(True, recipe.numerics)
        toy.exchange.after_step(step, 1.0)
    planned = []
    some = recipe.exchange.stages(recipe, recipe.phase[0], SHAPES, reductions(recipe)[0])
    for stage in [stage for stage in some if stage.share]:
        shapes = sent_shapes(stage, SHAPES)
        numbers = [sum(math.prod(shapes[name]) for name in bucket) for bucket in BUCKETS]
        planned.append((stage.share, sent_bytes(stage, numbers, 2)))
    # Parts of parameters end with a row.
    close = 0.03 if recipe.exchange.cycle != recipe.exchange.agreement else 1e-12
    assert sum(share for share, _ in planned) == pytest.approx(1, abs=1e-12)
    assert sum(share * bytes_sent for share, bytes_sent in planned) == pytest.approx(sum(step_bytes) / STEPS, rel=close)
    assert planned[0][1] == pytest.approx(step_bytes[0], rel=close)
    last = round(planned[-1][0] * STEPS)
    assert planned[-1][1] == pytest.approx(sum(step_bytes[-last:]) / last, rel=close)


def test_every_method_has_its_case():
    assert {case_recipe(case).exchange.method for case in CASES} == set(METHODS)


def test_one_rank_sends_nothing_and_a_host_of_several_ranks_sends_each_number_once():
    recipe = case_recipe("int8")
    [stage] = stages(recipe, recipe.phase[0])
    assert sent_bytes(stage, [4096], 1) == 0
    assert sent_bytes(stage, [4096], 8) == 2 * 7 / 8 * 4096 * (1 + 2 / 256)
    assert sent_bytes(stage, [4096], 8, inside=4) == 2 * 1 / 8 * 4096 * (1 + 2 / 256)  # to the one other host


def with_exchange(recipe: Recipe, steps: int, warmup: float, **settings: Any) -> Recipe:
    phase = dataclasses.replace(recipe.phase[0], steps=steps, warmup=warmup)
    return dataclasses.replace(recipe, exchange=exchange_of(**settings), phase=(phase,))


@pytest.mark.parametrize(
    ("dense", "warmup", "expected"), [(0.25, 0.1, 0.25), (0.25, 0.29, 0.29), ("auto", 0.0, 0.2), (0.0, 0.0, 0.01)]
)
def test_the_dense_share_of_frozen_v(dense, warmup, expected):
    recipe = with_exchange(toy_recipe(), 100, warmup, method="onebit_adam", dense=dense)
    assert [stage.share for stage in stages(recipe, recipe.phase[0])] == [expected, pytest.approx(1 - expected)]


def test_all_dense_is_one_stage():
    for method in ("onebit_adam", "largest_chunks", *more_rows("rows.STAGED")):
        recipe = with_exchange(toy_recipe(), 10, 0.0, method=method, dense=1.0)
        assert [(stage.name, stage.share) for stage in stages(recipe, recipe.phase[0])] == [("dense", 1.0)]
