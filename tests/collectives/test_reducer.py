"""Sums of gradients over ranks: static buckets, float32 and scaled float16 on the wire."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.reducer import GradientReducer, assign_buckets, next_maxima, wire_scale
from bert_horovod.collectives.world import World
from bert_horovod.config import Model
from bert_horovod.model.bert import parameter_shapes
from tests.collectives.two_ranks import (
    BUCKET_BYTES,
    BUCKETS,
    RANKS,
    SHAPES,
    STEPS,
    SURGE,
    SURGE_STEPS,
    gradients,
    short_gradients,
)


def summed(of_rank) -> dict[str, np.ndarray]:
    """The sum over ranks, in float64."""
    return {name: sum(np.asarray(of_rank(rank)[name], np.float64) for rank in range(RANKS)) for name in SHAPES}


def part(found: dict[str, np.ndarray], step: str) -> dict[str, np.ndarray]:
    return {name: found[f"{step}.{name}"] for name in SHAPES}


@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20, 1 << 40])
def test_buckets_hold_every_parameter_once_in_backward_order(bucket_bytes):
    shapes = parameter_shapes(Model(vocab_size=500, hidden_size=48, intermediate_size=100), next_sentence=True)
    buckets = assign_buckets(shapes, bucket_bytes)
    assert [name for bucket in buckets for name in bucket] == list(reversed(shapes))


@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20, 1 << 40])
def test_a_bucket_holds_what_fits_and_a_larger_tensor_has_one_of_its_own(bucket_bytes):
    shapes = parameter_shapes(Model(vocab_size=500, hidden_size=48, intermediate_size=100), next_sentence=True)
    sizes = [[4 * math.prod(shapes[name]) for name in bucket] for bucket in assign_buckets(shapes, bucket_bytes)]
    assert all(sum(bucket) <= bucket_bytes or len(bucket) == 1 for bucket in sizes)
    assert all(sum(bucket) + following[0] > bucket_bytes for bucket, following in itertools.pairwise(sizes))


def test_buckets_of_an_example():
    assert assign_buckets(SHAPES, BUCKET_BYTES) == BUCKETS


def test_a_world_of_one_reduces_nothing():
    reducer = GradientReducer(World(), SHAPES, BUCKET_BYTES, "float16")
    mine = {name: tf.constant(array) for name, array in gradients(0, 0).items()}
    assert reducer.reduce(mine) is mine
    assert (reducer.bytes_reduced, reducer.wire_bytes) == (0, 0)


def test_bytes_are_those_of_the_wires_dtype(ranks):
    elements = sum(math.prod(shape) for shape in SHAPES.values())
    share = 2 * (RANKS - 1) / RANKS
    for found in ranks:
        assert list(found["bytes"]) == [4 * elements, share * 4 * elements, 2 * elements, share * 2 * elements]


def test_the_float32_wire_gives_the_sum_over_ranks(ranks):
    expected = summed(lambda rank: gradients(rank, 0))
    for found in ranks:
        for name, array in part(found, "float32").items():
            np.testing.assert_allclose(array, expected[name], rtol=2**-23, atol=2e-11)
            assert array.shape == SHAPES[name]


def test_the_float16_wire_is_within_its_bound_once_the_maxima_are_known(ranks):
    # Half a unit in the last place, 2^-11 of a number, is lost on each of two ranks and in their sum. A rank's numbers
    # are at most about the sum's maximum here: 3 x 2^-11 = 1.5 x 2^-10 of the bucket's maximum bounds the error.
    for step in range(1, STEPS):
        expected = summed(lambda rank, step=step: gradients(rank, step))
        for bucket in BUCKETS:
            maximum = max(np.abs(expected[name]).max() for name in bucket)
            for found in ranks:
                for name in bucket:
                    error = np.abs(part(found, f"float16.{step}")[name] - expected[name]).max()
                    assert error <= 1.5 * 2**-10 * maximum


def test_the_float16_wire_knows_the_maxima_of_the_reduced_buckets(ranks):
    for found in ranks:
        for step in range(STEPS):
            reduced = part(found, f"float16.{step}")
            expected = [max(np.abs(reduced[name]).max() for name in bucket) for bucket in BUCKETS]
            np.testing.assert_array_equal(found[f"float16.{step}.maxima"], np.array(expected, np.float32))


def test_the_float16_wire_loses_nothing_where_the_numbers_fit_because_its_scale_is_a_power_of_two(ranks):
    expected = summed(short_gradients)
    for found in ranks:
        for name, array in part(found, "short.1").items():
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
    for found in ranks:
        assert np.isnan(found["broken.b"][3])


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_each_bucket_is_one_all_reduce_and_nothing_is_gathered(ranks, wire):
    for found in ranks:
        operations = [name for name in found[f"operations.{wire}"] if name.startswith("Horovod")]
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


def test_the_float16_wire_recovers_from_many_steps_that_were_not_finite():
    reducer = GradientReducer(Doubled(), {"x": (3,)}, 1, "float16")
    good = {"x": tf.constant([1e-3, -2e-3, 5e-4])}
    for _ in range(15):  # as a loss scale that is far too large makes them
        assert not np.isfinite(reducer.reduce({"x": tf.constant([math.inf, 1.0, 1.0])})["x"]).all()
    for _ in range(15):
        reduced = reducer.reduce(good)["x"]
    np.testing.assert_allclose(reduced, 2 * good["x"], rtol=2**-10)
