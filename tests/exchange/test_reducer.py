"""Sums of gradients over ranks: static buckets, float32 and scaled float16 on the wire."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan, by_size
from bert_horovod.exchange.dense.reducer import GradientReducer, next_maxima, wire_scale
from bert_horovod.exchange.two_step import BLOCK
from tests.exchange.jobs import (
    BUCKET_BYTES,
    BUCKETS,
    RANKS,
    SHAPES,
    STEPS,
    SURGE,
    SURGE_STEPS,
    TABLE,
    dense,
    eight_bits,
    gradients,
    looked_up,
    reductions,
    short_gradients,
    tables,
)

PADDED = 3 * RANKS * BLOCK  # numbers of the three buckets, each of which takes a block of each rank


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict[str, np.ndarray]]:
    """What each of two ranks got from its reductions."""
    jobs = [two_ranks.run(job) for job in (reductions, tables)]
    return [jobs[0][rank].value | jobs[1][rank].value for rank in range(RANKS)]


def summed(of_rank) -> dict[str, np.ndarray]:
    """The sum over ranks, in float64."""
    return {name: sum(np.asarray(of_rank(rank)[name], np.float64) for rank in range(RANKS)) for name in SHAPES}


def part(found: dict[str, np.ndarray], step: str) -> dict[str, np.ndarray]:
    return {name: found[f"{step}.{name}"] for name in SHAPES}


def test_a_world_of_one_reduces_nothing():
    reducer = GradientReducer(World(), SHAPES, by_size(SHAPES, BUCKET_BYTES), "float16")
    mine = {name: tf.constant(array) for name, array in gradients(0, 0).items()}
    reduced = reducer.reduce(mine, {}).gradients
    assert all(reduced[name] is mine[name] for name in SHAPES)
    assert (reducer.bytes_reduced(), reducer.wire_bytes()) == (0, 0)


@pytest.mark.parametrize("rows", ["table", None])
def test_a_world_of_one_adds_looked_up_rows_to_the_dense_part(rows):
    reducer = GradientReducer(World(), TABLE, BucketPlan([["table"], ["f"]], rows), "float16")
    ids, values = looked_up(0)
    mine = {name: tf.constant(array) for name, array in dense(0).items()}
    reduced = reducer.reduce(mine, {"table": tf.IndexedSlices(tf.constant(values), tf.constant(ids))}).gradients
    np.testing.assert_allclose(reduced["table"], with_lookup(0), rtol=1e-6)


def with_lookup(rank: int) -> np.ndarray:
    """A rank's gradient of the table, float64."""
    gradient = dense(rank)["table"].astype(np.float64)
    ids, values = looked_up(rank)
    np.add.at(gradient, ids, values)
    return gradient


@pytest.mark.parametrize("held_back", [False, True])
@pytest.mark.parametrize(("wire", "bound"), [("float32", 1e-6), ("float16", 4 * 2**-10)])
@pytest.mark.parametrize("rows", ["table", None])
def test_looked_up_rows_come_to_the_same_sum_alone_or_with_the_rest(ranks, rows, wire, bound, held_back):
    expected = sum(with_lookup(rank) for rank in range(RANKS))
    key = f"{rows}.{wire}.{held_back}"
    for arrays in ranks:
        np.testing.assert_allclose(arrays[f"{key}.table"], expected, atol=bound * np.abs(expected).max())
        np.testing.assert_array_equal(arrays[f"{key}.table"], ranks[0][f"{key}.table"])
        np.testing.assert_array_equal(arrays[f"{key}.f"], ranks[0][f"{key}.f"])


def test_the_rows_that_any_rank_looked_up_are_sent_and_counted(ranks):
    touched = np.unique(np.concatenate([looked_up(rank)[0].reshape(-1) for rank in range(RANKS)]))
    numbers = 60 * 3 + 7
    for arrays in ranks:
        for wire, width in (("float32", 4), ("float16", 2)):
            assert arrays[f"table.{wire}.False.rows"] == len(touched)
            assert arrays[f"table.{wire}.False.bytes"] == width * (numbers + 3 * len(touched)) + 60  # and the bitmap
            assert arrays[f"None.{wire}.False.rows"] == 0
            assert arrays[f"None.{wire}.False.bytes"] == width * numbers


def test_the_times_of_all_reduces_are_in_order_and_held_back_ones_wait_for_the_last_gradient(ranks):
    for arrays in ranks:
        for rows, count in (("table", 3), ("None", 2)):
            for held_back in (False, True):
                ready, done = arrays[f"{rows}.float32.{held_back}.times"]
                assert len(ready) == count
                assert (ready <= done).all()


def test_maxima_outlive_their_plan():
    reducer = GradientReducer(Doubled(), TABLE, BucketPlan([["f"], ["table"]], "table"), "float16")
    reducer.maxima.assign([0.5, 2.0, 8.0])
    maxima = reducer.maxima_by_name()
    assert maxima == {"f": 0.5, "table": 2.0, "table/rows": 8.0}
    again = GradientReducer(Doubled(), TABLE, BucketPlan([["f"], ["table"]], "table"), "float16")
    again.restore_maxima(maxima)
    np.testing.assert_array_equal(again.maxima, [0.5, 2.0, 8.0])
    other = GradientReducer(Doubled(), TABLE, BucketPlan([["table", "f"]]), "float16")
    other.restore_maxima(maxima)
    np.testing.assert_array_equal(other.maxima, [2.0])
    other.restore_maxima({})
    np.testing.assert_array_equal(other.maxima, [1.0])


def test_the_float32_wire_gives_the_sum_over_ranks(ranks):
    expected = summed(lambda rank: gradients(rank, 0))
    for arrays in ranks:
        for name, array in part(arrays, "float32").items():
            np.testing.assert_allclose(array, expected[name], rtol=2**-23, atol=2e-11)
            assert array.shape == SHAPES[name]


@pytest.mark.parametrize("way", ["float16", "two_step"])
def test_the_float16_wire_is_within_its_bound_once_the_maxima_are_known_and_knows_them(ranks, way):
    # Half a unit in the last place, 2^-11 of a number, is lost on each of two ranks and in their sum. A rank's numbers
    # are at most about the sum's maximum here: 3 x 2^-11 = 1.5 x 2^-10 of the bucket's maximum bounds the error.
    for step in range(1, STEPS):
        expected = summed(lambda rank, step=step: gradients(rank, step))
        for arrays in ranks:
            sums = part(arrays, f"{way}.{step}")
            for bucket in BUCKETS:
                maximum = max(np.abs(expected[name]).max() for name in bucket)
                for name in bucket:
                    assert np.abs(sums[name] - expected[name]).max() <= 1.5 * 2**-10 * maximum
                    np.testing.assert_array_equal(sums[name], ranks[0][f"{way}.{step}.{name}"])
            largest = [max(np.abs(sums[name]).max() for name in bucket) for bucket in BUCKETS]
            np.testing.assert_array_equal(arrays[f"{way}.{step}.maxima"], np.array(largest, np.float32))


def test_the_float16_wire_loses_nothing_where_the_numbers_fit_because_its_scale_is_a_power_of_two(ranks):
    expected = summed(short_gradients)
    for arrays in ranks:
        for name, array in part(arrays, "short.1").items():
            np.testing.assert_array_equal(array, expected[name])


def test_an_overflow_of_the_float16_wire_is_seen_and_mended_by_all_ranks_alike(ranks):
    finite = []
    for step in range(SURGE_STEPS):
        for name in SHAPES:
            np.testing.assert_array_equal(ranks[0][f"surge.{step}.{name}"], ranks[1][f"surge.{step}.{name}"])
        np.testing.assert_array_equal(ranks[0][f"surge.{step}.maxima"], ranks[1][f"surge.{step}.maxima"])
        finite.append(all(np.isfinite(array).all() for array in part(ranks[0], f"surge.{step}").values()))
    assert finite == [False, False, True, True, True]  # 2^10 too large: 2^4 and 2^4 more, then 2^2 in float16's room
    expected = summed(short_gradients)
    for name, array in part(ranks[0], f"surge.{SURGE_STEPS - 1}").items():
        np.testing.assert_array_equal(array, expected[name] * SURGE)


def test_a_gradient_that_is_not_a_number_on_one_rank_is_seen_by_all(ranks):
    for arrays in ranks:
        assert np.isnan(arrays["broken.b"][3])


def test_an_overflow_in_two_steps_is_seen_by_all_ranks_alike(ranks):
    for name in SHAPES:
        np.testing.assert_array_equal(ranks[0][f"two_step.surge.{name}"], ranks[1][f"two_step.surge.{name}"])
    assert not all(np.isfinite(array).all() for array in part(ranks[0], "two_step.surge").values())
    np.testing.assert_array_equal(ranks[0]["two_step.surge.maxima"], ranks[1]["two_step.surge.maxima"])


def test_int8_loses_nothing_over_steps_but_what_is_owed_and_a_step_that_is_not_finite_leaves_that_alone(two_ranks):
    of_ranks = [answer.value for answer in two_ranks.run(eight_bits)]
    finite = [step for step in range(STEPS) if step != 1]
    for i, bucket in enumerate(BUCKETS):
        exact, reduced = (
            sum(np.concatenate([np.float64(of(step)[name]).reshape(-1) for name in bucket]) for step in finite)
            for of in (
                lambda step: summed(lambda rank: gradients(rank, step)),
                lambda step: {name: of_ranks[0][f"{step}.{name}"] for name in SHAPES},
            )
        )
        owed = sum(each[f"error.worker.{i}"].astype(np.float64) for each in of_ranks).reshape(-1)
        owed += np.concatenate([each[f"error.server.{i}"] for each in of_ranks])
        np.testing.assert_allclose(reduced + owed[: len(reduced)], exact, atol=1e-10)
        assert np.abs(owed).max() > 0
    for of_rank in of_ranks:
        assert not np.isfinite(of_rank["1.c"]).all()
        for step in range(STEPS):
            for name in SHAPES:
                np.testing.assert_array_equal(of_rank[f"{step}.{name}"], of_ranks[0][f"{step}.{name}"])
        assert list(of_rank["bytes"]) == [PADDED * (1 + 2 / BLOCK)] * 2


@pytest.mark.parametrize(
    ("wire", "plan"),
    [
        ("float32", BucketPlan([["table"], ["f"]], reduction="two_step")),
        ("int8", BucketPlan([["table"], ["f"]])),
        ("int8", BucketPlan([["table"], ["f"]], rows="table", reduction="two_step")),
    ],
)
def test_a_plan_that_does_not_fit_the_wire_is_refused(wire, plan):
    with pytest.raises(ValueError, match=f"does not fit the {wire} wire"):
        GradientReducer(World(), TABLE, plan, wire)


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_each_bucket_is_one_all_reduce_and_nothing_is_gathered(ranks, wire):
    for arrays in ranks:
        operations = [name for name in arrays[f"operations.{wire}"] if name.startswith("Horovod")]
        assert operations == ["HorovodAllreduce"] * len(BUCKETS)


@pytest.mark.parametrize("maximum", [2.0**-90, 1.5e-20, 1e-5, 0.999, 1.0, 1.001, 3e7, 2.0**100])
def test_the_scale_is_a_power_of_two_that_brings_the_maximum_between_2048_and_4096(maximum):
    scale = float(wire_scale(tf.constant(maximum, tf.float32)))
    assert math.frexp(scale)[0] == 0.5
    assert 2**11 <= np.float32(maximum) * scale < 2**12


@pytest.mark.parametrize(
    ("assumed", "found", "expected"),
    [
        (1.0, 0.25, 0.25),
        (1.0, 5.0, 5.0),
        (1.0, 2.0**-120, 2.0**-90),  # keeps the scale finite
        (0.5, math.inf, 8.0),
        (0.5, math.nan, 8.0),
        (2.0**99, math.inf, 2.0**100),  # keeps the scale above 0
        (1.0, 0.0, 2.0**-4),  # perhaps rounded to 0 under a maximum that is much too large
        (2.0**-28, 0.0, 2.0**-30),
        (2.0**-50, 0.0, 2.0**-50),  # not so far that the first gradients after it overflow many times
    ],
)
def test_the_next_maximum_follows_from_the_assumed_and_the_found(assumed, found, expected):
    assert float(next_maxima(tf.constant([assumed]), tf.constant([found]))[0]) == expected


class Doubled(World):
    """Two ranks with the same gradients, in one process."""

    size = 2

    def all_reduce(self, tensor, name):
        return tensor + tensor
