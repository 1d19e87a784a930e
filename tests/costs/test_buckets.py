"""Buckets by size, and by a link and a profile: checked against every possible cut.

Profiles computed from products.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.costs.buckets import (
    CAUTION,
    DEFAULT_BYTES,
    SLACK,
    BackwardProfile,
    BucketPlan,
    by_profile,
    by_size,
    computed_profile,
    seconds,
    touched_rows,
)
from bert_horovod.costs.derived import derive, flops_per_row
from bert_horovod.costs.exchanges import Link, fit
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.exchange.jobs import BUCKET_BYTES, BUCKETS, SHAPES


@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20, 1 << 40])
def test_buckets_hold_every_parameter_once_in_backward_order_and_what_fits_or_one_larger_tensor(bucket_bytes):
    shapes = pretraining_shapes(Model(vocab_size=500, hidden_size=48, intermediate_size=100), pairs=True)
    buckets = by_size(shapes, bucket_bytes).buckets
    assert [name for bucket in buckets for name in bucket] == list(reversed(shapes))
    sizes = [[4 * math.prod(shapes[name]) for name in bucket] for bucket in buckets]
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


RATE = 1e12


def profile_of(recipe, ranks: int = 1, trained_layers: int = 0):
    return computed_profile(recipe, replace(recipe.phase[0], trained_layers=trained_layers), ranks, RATE)


def toy(recompute: str = "none", pair: str = "next_sentence", length: int = 128):
    return recipe_from_table(
        {
            "model": {"num_hidden_layers": 3},
            "objective": {"pair": pair},
            "phase": [{"sequence_length": length}],
            "execution": {"micro_batch": 4, "recompute": recompute},
        }
    )


@pytest.mark.parametrize(("pair", "length"), [("next_sentence", 128), ("none", 128), ("none", 512)])
def test_forward_is_a_third_of_the_products(pair, length):
    recipe = toy(pair=pair, length=length)
    profile = profile_of(recipe)
    flops = 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    assert profile.end_s == pytest.approx(flops / RATE, rel=1e-9)
    assert profile.forward_s == pytest.approx(profile.end_s / 3, rel=1e-9)


def test_gradients_come_from_the_head_to_the_embeddings():
    profile = profile_of(toy())
    assert profile.ready_s.keys() == pretraining_shapes(toy().model, True).keys()
    layers = [profile.ready_s[f"bert.encoder.layer.{i}.attention.self.query.weight"] for i in range(3)]
    head = profile.ready_s["cls.predictions.bias"]
    assert (
        profile.forward_s
        < head
        == profile.ready_s[WORD_EMBEDDINGS]
        < layers[2]
        < layers[1]
        < layers[0]
        == profile.end_s
    )
    assert profile.ready_s["bert.embeddings.position_embeddings.weight"] == profile.end_s
    assert layers[2] - head < 0.8 * (layers[1] - layers[2])  # the last layer computes what a head reads
    assert layers[1] - layers[2] == pytest.approx(layers[0] - layers[1])


def test_recomputed_layers_take_half_as_long_again():
    plain, attention, layer = (profile_of(toy(each)) for each in ("none", "attention", "layer"))
    assert plain.forward_s == attention.forward_s == layer.forward_s
    name = "bert.encoder.layer.{}.output.dense.weight".format

    def of_layer(profile):
        return profile.ready_s[name(0)] - profile.ready_s[name(1)]

    def of_the_last(profile):  # which has fewer positions: those that a head reads
        return profile.ready_s[name(2)] - profile.ready_s["cls.predictions.bias"]

    assert of_layer(layer) == pytest.approx(1.5 * of_layer(plain))
    assert of_the_last(layer) == pytest.approx(1.5 * of_the_last(plain))
    assert of_the_last(attention) > of_the_last(plain)
    scores = 2 * 4 * 128 * 128 * 768 / RATE
    assert of_layer(attention) == pytest.approx(of_layer(plain) + scores)


def test_shared_layers_have_their_gradients_when_the_lowest_is_done():
    table = {"num_hidden_layers": 4, "embedding_size": 128}
    own, two, one = (
        profile_of(recipe_from_table({"model": table | {"shared_layers": groups}})) for groups in (0, 2, 1)
    )
    name = "bert.encoder.layer.{}.output.dense.weight".format
    assert own.end_s == two.end_s == one.end_s
    assert (two.ready_s[name(1)], two.ready_s[name(0)]) == pytest.approx((own.ready_s[name(2)], own.ready_s[name(0)]))
    assert one.ready_s[name(0)] == pytest.approx(own.ready_s[name(0)])
    assert one.ready_s[name(0)] < one.ready_s["bert.encoder.embedding_hidden_mapping_in.weight"] == one.end_s
    assert one.ready_s[WORD_EMBEDDINGS] == own.ready_s[WORD_EMBEDDINGS]


def test_looked_up_rows_are_those_of_all_ranks_and_at_most_the_vocabulary():
    one, many = (profile_of(toy(), ranks).rows[WORD_EMBEDDINGS] for ranks in (1, 1000))
    assert 0 < one < 4 * 128 < many <= 30522


def test_touched_rows_are_as_many_as_drawn_ones():
    random = np.random.default_rng(0)
    drawn = [len(set((1001 ** random.random(5000) - 1).astype(int).tolist())) for _ in range(20)]
    assert touched_rows(1000, 5000) == pytest.approx(np.mean(drawn), rel=0.02)
    assert touched_rows(1000, 1) == 1


@pytest.mark.parametrize("recompute", ["none", "layer"])
def test_backward_ends_below_the_layers_that_train(recompute):
    recipe = toy(recompute)
    whole, upper = (profile_of(recipe, trained_layers=layers) for layers in (0, 2))
    layer = "bert.encoder.layer.{}.output.dense.weight".format
    assert upper.forward_s == whole.forward_s
    assert upper.ready_s.keys() == {
        name for name in whole.ready_s if not name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))
    }
    vocabulary = 2 * 4 * 19 * 30528 * 768 / RATE  # the frozen table has no gradient
    assert upper.ready_s[layer(1)] == pytest.approx(whole.ready_s[layer(1)] - vocabulary)
    assert upper.end_s == upper.ready_s[layer(1)]
    assert upper.rows == {}


def test_backward_of_upper_layers_takes_the_operations_that_a_row_is_counted_with():
    recipe = toy()
    flops = 4 * flops_per_row(recipe.model, 128, full_row_slots(recipe, recipe.phase[0]).mean, 1, True, 2)
    assert profile_of(recipe, trained_layers=2).end_s == pytest.approx(flops / RATE, rel=1e-9)
