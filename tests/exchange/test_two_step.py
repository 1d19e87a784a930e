"""What numbers become on the wire, against float64 NumPy.

Sums in two steps, against a float64 transcription.
"""

import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.exchange.compressed.compressed_sums import Signs
from bert_horovod.exchange.two_step import BLOCK, Errors, Float16, Int8, TwoStep, encode_owing
from tests.exchange.two_step_jobs import ENCODINGS, NUMBERS, STEPS, owing, shares, sums
from tests.horovod_runs import horovodrun, run_process

ROWS, WIDTH = 2, 6 * BLOCK


def numbers() -> np.ndarray:
    """float32 [ROWS, WIDTH] of many magnitudes; the third block is of zeros."""
    random = np.random.default_rng(0)
    magnitudes = np.repeat(10.0 ** random.uniform(-20, 10, (ROWS, WIDTH // BLOCK)), BLOCK, 1)
    array = (random.standard_normal((ROWS, WIDTH)) * magnitudes).astype(np.float32)
    array[:, 2 * BLOCK : 3 * BLOCK] = 0
    return array


def signs() -> Signs:
    """One bit a number, with a scale a block."""
    blocks = ROWS * WIDTH // BLOCK
    return Signs(np.arange(blocks), np.full(blocks, BLOCK))


def int8_scales(values: np.ndarray) -> np.ndarray:
    """The scale of each number's block, float64."""
    largest = np.abs(values.astype(np.float64)).reshape(*values.shape[:-1], -1, BLOCK).max(-1)
    scales = (largest / 127).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return np.repeat(scales, BLOCK, -1)


def test_int8_sends_the_nearest_of_255_steps_of_its_blocks_scale():
    values = numbers()
    sent, stands_for = Int8().encode(tf.constant(values))
    scales = int8_scales(values)
    steps = np.divide(values, scales, out=np.zeros(values.shape), where=scales > 0)
    # A scale that was rounded down leaves the block's largest numbers half a step beyond 127.
    expected = np.clip(np.round(steps), -127, 127) * scales
    off = np.abs(stands_for.numpy() - expected)
    beside_a_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-4  # there the product's rounding may decide
    assert (off[~beside_a_tie] == 0).all()
    assert (off <= scales).all()
    assert (np.abs(stands_for.numpy() - values) <= (0.5 + 127 * 2**-8) * scales).all()
    np.testing.assert_array_equal(Int8().decode(sent), stands_for)


def test_float16_sends_halves():
    values = np.array([[1.0, 1 / 3, 65504.0, 1e6, -0.0]], np.float32)
    sent, stands_for = Float16().encode(tf.constant(values))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(sent, values.astype(np.float16))
    np.testing.assert_array_equal(stands_for, sent.numpy().astype(np.float32))
    np.testing.assert_array_equal(Float16().encode(sent)[0], sent)  # halves as they are


@pytest.mark.parametrize("encoding", [Float16(), Int8(), signs()])
def test_what_is_owed_is_what_was_not_sent(encoding):
    values, owed = numbers(), numbers()[::-1] / 3
    sent, then = encode_owing(encoding, tf.constant(values), tf.constant(owed))
    total = values + owed
    with np.errstate(invalid="ignore"):  # halves overflow
        expected = total - encoding.decode(sent).numpy()
    np.testing.assert_allclose(then, expected, rtol=1e-6)
    np.testing.assert_array_equal(sent, encoding.encode(tf.constant(total))[0])


@pytest.mark.parametrize("encoding", [Float16(), Int8()])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 77, WIDTH - 1])
def test_what_is_not_finite_arrives_as_not_finite(encoding, value, place):
    values = np.full((1, WIDTH), 1e-3, np.float32)
    values[0, place] = value
    arrived = encoding.decode(encoding.encode(tf.constant(values))[0]).numpy()
    block = slice(place // BLOCK * BLOCK, (place // BLOCK + 1) * BLOCK)
    assert not np.isfinite(arrived[0, place])
    assert np.isfinite(np.delete(arrived, np.arange(WIDTH)[block], 1)).all()


@pytest.mark.parametrize(("encoding", "wire"), [(Float16(), "float16"), (Int8(), "int8")])
def test_the_bytes_are_those_that_are_sent_and_those_that_plans_count(encoding, wire):
    sent, _ = encoding.encode(tf.constant(numbers()[:1]))
    assert sent.shape[1] * sent.dtype.size == encoding.sent_bytes(WIDTH) == NUMBER_BYTES[wire] * WIDTH


RANKS = 2


def rounded(values: np.ndarray, encoding: str) -> np.ndarray:
    """What an encoding makes of float64 [numbers], a multiple of BLOCK."""
    if encoding == "float16":
        return values.astype(np.float16).astype(np.float64)
    scale = int8_scales(values)
    steps = np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)
    return np.clip(np.round(steps), -127, 127) * scale


def two_step(values: list[np.ndarray], encoding: str) -> np.ndarray:
    """Of [numbers] of each rank; a part is a whole number of blocks."""
    numbers, ranks = len(values[0]), len(values)
    padding = -numbers % (ranks * BLOCK)
    padded = [np.pad(each.astype(np.float64), (0, padding)) for each in values]
    parts = np.split(sum(rounded(each, encoding) for each in padded), ranks)
    return np.concatenate([rounded(part, encoding) for part in parts])[:numbers]


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict[str, np.ndarray]]:
    return [answer.value for answer in two_ranks.run(sums)]


@pytest.mark.full
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_sum_is_that_of_the_transcription_and_the_same_bits_on_all_ranks_and_each_time(ranks, encoding, numbers):
    values = [shares(rank, numbers, 0) for rank in range(RANKS)]
    expected = two_step(values, encoding)
    key = f"{encoding}.{numbers}"
    for arrays in ranks:
        # Where a number lies between two steps, float32 may round it to the other one.
        assert np.median(np.abs(arrays[key] - expected)) <= 1e-6
        np.testing.assert_allclose(
            arrays[key], expected, atol=np.abs(expected).max() * (2**-5 if "8" in key else 2**-9)
        )
        np.testing.assert_array_equal(arrays[key], ranks[0][key])
        np.testing.assert_array_equal(arrays[f"{key}.again"], arrays[key])


@pytest.mark.full
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_what_is_not_finite_on_one_rank_is_seen_by_all(ranks, encoding, numbers):
    for arrays in ranks:
        assert not np.isfinite(arrays[f"{encoding}.{numbers}.broken"][-1])


def owed_by_place(of_ranks: list[dict[str, np.ndarray]], numbers: int) -> np.ndarray:
    """What all ranks owe each number in the end."""
    worker = sum(arrays[f"{numbers}.worker"].astype(np.float64) for arrays in of_ranks).reshape(-1)
    server = np.concatenate([arrays[f"{numbers}.server"] for arrays in of_ranks])
    return (worker + server)[:numbers]


@pytest.mark.full
def test_over_steps_the_sum_of_results_is_that_of_all_numbers_less_what_is_owed(two_ranks):
    of_ranks = [answer.value for answer in two_ranks.run(owing)]
    for numbers in NUMBERS:
        exact = sum(shares(rank, numbers, step).astype(np.float64) for rank in range(RANKS) for step in range(STEPS))
        owed = owed_by_place(of_ranks, numbers)
        for arrays in of_ranks:
            np.testing.assert_allclose(arrays[f"{numbers}.total"] + owed, exact, atol=1e-5)
            np.testing.assert_array_equal(arrays[f"{numbers}.total"], of_ranks[0][f"{numbers}.total"])
        assert 0 < np.abs(owed).max() < 0.1  # less than two steps of 1 / 127 of the largest sums


def test_a_world_of_one_encodes_nothing():
    alone, values = TwoStep(World(), 5, "alone"), tf.constant([1 / 3] * 5)
    errors = Errors(tf.ones(alone.worker_shape), tf.ones([alone.part]))
    assert alone.sum(values, Int8(), errors) == (values, errors)


def test_bytes_are_those_of_both_steps_to_other_ranks():
    class Four(World):
        size = 4

    reduction = TwoStep(Four(), 5000, "four")
    assert (reduction.part, reduction.padded, reduction.worker_shape) == (1280, 5120, (4, 1280))
    assert reduction.sent_bytes(Float16()) == 2 * 3 * 2 * 1280
    assert reduction.sent_bytes(Int8()) == 2 * 3 * (1280 + 5 * 2)


@pytest.mark.slow
def test_hosts_of_several_ranks_come_to_the_flat_sum_to_rounding(tmp_path):
    command = [*horovodrun(4), "-H", "localhost:2,127.0.0.1:2", sys.executable]
    command += ["-m", "tests.exchange.two_step_jobs", str(tmp_path)]
    done = run_process(command)
    assert done.returncode == 0, done.stdout + done.stderr
    of_ranks = [np.load(tmp_path / f"{rank}.npz") for rank in range(4)]
    for arrays in of_ranks:
        for key in (f"{encoding}.{numbers}" for encoding in ENCODINGS for numbers in NUMBERS):
            exact = sum(shares(rank, int(key.split(".")[1]), 0).astype(np.float64) for rank in range(4))
            bound = np.abs(exact).max() * (2**-10 if "16" in key else 5 / 127)
            np.testing.assert_allclose(arrays[key], exact, atol=bound)
            np.testing.assert_allclose(arrays[key], arrays[f"flat.{key}"], atol=2 * bound)
            np.testing.assert_array_equal(arrays[key], of_ranks[0][key])
            assert not np.isfinite(arrays[f"{key}.broken"][-1])
        for numbers in NUMBERS:
            np.testing.assert_array_equal(arrays[f"owing.{numbers}.total"], of_ranks[0][f"owing.{numbers}.total"])
    for numbers in NUMBERS:
        # Rank r is place r % 2 of host r // 2: a place's part of the numbers is owed by its ranks in both hosts.
        exact = sum(shares(rank, numbers, step).astype(np.float64) for rank in range(4) for step in range(STEPS))
        worker = [sum(of_ranks[2 * host + place][f"owing.{numbers}.worker"] for host in (0, 1)) for place in (0, 1)]
        server = [
            np.stack([of_ranks[2 * host + place][f"owing.{numbers}.server"] for host in (0, 1)]) for place in (0, 1)
        ]
        owed = (np.stack(worker) + np.stack(server)).reshape(-1)[:numbers]
        np.testing.assert_allclose(of_ranks[0][f"owing.{numbers}.total"] + owed, exact, atol=1e-5)
