"""Buckets by size, and by a link and a profile: checked against every possible cut."""

import itertools
import math

import numpy as np
import pytest

from bert_horovod.costs.buckets import (
    CAUTION,
    DEFAULT_BYTES,
    SLACK,
    BackwardProfile,
    BucketPlan,
    by_profile,
    by_size,
    seconds,
)
from bert_horovod.costs.exchanges import Link, fit
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from tests.exchange.jobs import BUCKET_BYTES, BUCKETS, SHAPES


@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20, 1 << 40])
def test_buckets_hold_every_parameter_once_in_backward_order(bucket_bytes):
    shapes = pretraining_shapes(Model(vocab_size=500, hidden_size=48, intermediate_size=100), pairs=True)
    buckets = by_size(shapes, bucket_bytes).buckets
    assert [name for bucket in buckets for name in bucket] == list(reversed(shapes))


@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20, 1 << 40])
def test_a_bucket_holds_what_fits_and_a_larger_tensor_has_one_of_its_own(bucket_bytes):
    shapes = pretraining_shapes(Model(vocab_size=500, hidden_size=48, intermediate_size=100), pairs=True)
    sizes = [[4 * math.prod(shapes[name]) for name in bucket] for bucket in by_size(shapes, bucket_bytes).buckets]
    assert all(sum(bucket) <= bucket_bytes or len(bucket) == 1 for bucket in sizes)
    assert all(sum(bucket) + following[0] > bucket_bytes for bucket, following in itertools.pairwise(sizes))


def test_buckets_of_an_example():
    assert by_size(SHAPES, BUCKET_BYTES).buckets == BUCKETS


def test_auto_without_a_measurement_is_the_default_size():
    shapes = pretraining_shapes(Model(), pairs=True)
    assert by_size(shapes, "auto") == by_size(shapes, DEFAULT_BYTES)


def example(seed: int) -> tuple[dict[str, tuple[int, ...]], BackwardProfile]:
    """Seven parameters, one a table, with random sizes and times."""
    random = np.random.default_rng(seed)
    shapes = {f"p{i}": (int(random.integers(1, 40)), int(random.integers(1, 40))) for i in range(6)}
    shapes["table"] = (200, 10)
    ready = {name: float(value) for name, value in zip(shapes, random.uniform(0, 1, 7), strict=True)}
    return shapes, BackwardProfile(0.0, ready, end_s=1.0, rows={"table": int(random.integers(1, 200))})


def every_plan(shapes: dict[str, tuple[int, ...]], profile: BackwardProfile) -> list[BucketPlan]:
    """All cuts of the parameters in the order of their readiness, with the table's rows alone and with the rest."""
    plans = []
    for rows in (None, "table"):
        ready = dict(profile.ready_s) | ({} if rows else {"table": profile.end_s})
        names = sorted(shapes, key=lambda name: ready[name])
        for cuts in itertools.product([False, True], repeat=len(names) - 1):
            buckets = [[names[0]]]
            for name, cut in zip(names[1:], cuts, strict=True):
                if cut:
                    buckets.append([])
                buckets[-1].append(name)
            plans.append(BucketPlan(buckets, rows))
    return plans


@pytest.mark.parametrize("latency_s", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("s_per_byte", [1e-6, 5e-5, 1e-3])
@pytest.mark.parametrize("seed", range(5))
def test_the_planned_step_ends_as_early_as_any_to_the_slack(seed, latency_s, s_per_byte):
    shapes, profile = example(seed)
    link = Link(latency_s, s_per_byte)
    plan = by_profile(shapes, 2, profile, link)
    link = link.slower(CAUTION)
    assert sorted(name for bucket in plan.buckets for name in bucket) == sorted(shapes)
    best = min(seconds(each, shapes, 2, profile, link) for each in every_plan(shapes, profile))
    assert best <= seconds(plan, shapes, 2, profile, link) <= best * (1 + 2 * SLACK)


def test_the_time_of_a_plan_is_that_of_its_transcription():
    shapes = {"a": (10,), "b": (20,), "table": (100, 2)}
    profile = BackwardProfile(0.0, {"a": 0.5, "b": 0.2, "table": 0.1}, end_s=1.0, rows={"table": 5})
    link = Link(0.05, 0.001)
    # table: from 0.1, 0.05 + 0.4; b and a: from 0.55, 0.05 + 0.06; rows: from 1.0, 0.05 + 0.02
    assert seconds(BucketPlan([["table"], ["b", "a"]], "table"), shapes, 2, profile, link) == pytest.approx(1.07)
    # b: from 0.2, 0.05 + 0.04; a: from 0.5, 0.05 + 0.02; table complete at 1.0: 0.05 + 0.4
    assert seconds(BucketPlan([["b"], ["a"], ["table"]]), shapes, 2, profile, link) == pytest.approx(1.45)


def test_a_fast_link_makes_one_bucket_and_a_slow_one_starts_early():
    shapes, profile = example(0)
    assert len(by_profile(shapes, 2, profile, Link(1e-6, 1e-12)).buckets) == 1
    slow = by_profile(shapes, 2, profile, Link(0.0, 1e-3))
    assert len(slow.buckets) > 1
    assert slow.buckets[0] == [min(shapes, key=lambda name: profile.ready_s[name])]


@pytest.mark.parametrize(("touched", "rows"), [(10, "table"), (200, None)])
def test_rows_are_sent_alone_where_that_is_sooner(touched, rows):
    shapes = {"a": (10,), "table": (200, 10)}
    profile = BackwardProfile(0.0, {"a": 0.9, "table": 0.5}, end_s=1.0, rows={"table": touched})
    assert by_profile(shapes, 2, profile, Link(0.001, 1e-3)).rows == rows


def test_a_link_is_fitted_to_what_was_timed():
    link = Link(0.002, 1e-8)
    fitted = fit([(size, link.seconds(size)) for size in (1 << 10, 1 << 14, 1 << 18, 1 << 22)])
    assert fitted[:2] == pytest.approx(link[:2], rel=1e-6)
    assert fitted.bytes_per_s(4) == pytest.approx(1.5e8, rel=1e-6)
    burst = 1 << 17  # that a link lets through at once
    fitted = fit([(size, link.seconds(max(0, size - burst))) for size in (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22)])
    assert fitted.s_per_byte == pytest.approx(1e-8, rel=1e-6)
    assert 0 < fitted.latency_s <= 0.002
    noisy = fit([(1 << 10, 0.004), (1 << 14, 0.001), (1 << 18, 0.010), (1 << 22, 0.2)])
    assert noisy.latency_s > 0
    assert noisy.s_per_byte > 0
