"""Sums in two steps, against a float64 transcription."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.two_step import BLOCK, Errors, Float16, Int8, TwoStep
from tests.exchange.two_step_jobs import ENCODINGS, NUMBERS, STEPS, owing, shares, sums
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment, horovodrun

RANKS = 2


def rounded(values: np.ndarray, encoding: str) -> np.ndarray:
    """What an encoding makes of float64 [numbers], a multiple of BLOCK."""
    if encoding == "float16":
        return values.astype(np.float16).astype(np.float64)
    blocks = values.reshape(-1, BLOCK)
    scale = (np.abs(blocks).max(1) / 127).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)[:, None]
    steps = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    return (np.clip(np.round(steps), -127, 127) * scale).reshape(-1)


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
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), cwd=PROJECT, check=False
    )
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
