"""The largest chunks: on two ranks the sums, the choice and what waits are those of a transcription to NumPy."""

import math

import numpy as np
import pytest

from bert_horovod.costs.buckets import by_size
from bert_horovod.errors import UserError
from tests.exchange.local_jobs import (
    BUCKET_BYTES,
    RANKS,
    RATE,
    SHAPES,
    exchange_recipe,
    initial,
    share,
    trained,
    trained_in_parts,
)
from tests.toy_runs import metrics, train_rank
from tests.toys import toy_recipe

STEPS, BAD, CHUNK = 20, 11, 16
SGD = {"name": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
BUCKETS = by_size(SHAPES, BUCKET_BYTES).buckets


def chunks_recipe(wire: str = "float32", optimizer: dict = SGD, **exchange):
    exchange = {"method": "largest_chunks", "chunk": CHUNK, "fraction": 0.25, **exchange}
    return exchange_recipe(STEPS, exchange=exchange, optimizer=optimizer, numerics={"wire": wire})


def flat(values: dict[str, np.ndarray], bucket: list[str]) -> np.ndarray:
    """A bucket as chunks, float64, zeros at its end."""
    joined = np.concatenate([values[name].reshape(-1) for name in bucket]).astype(np.float64)
    return np.pad(joined, (0, -len(joined) % CHUNK)).reshape(-1, CHUNK)


def transcribed(dense_steps: int) -> tuple[list[dict[str, np.ndarray]], list[list[np.ndarray]]]:
    """Parameters by step; residuals by rank and bucket at the end."""
    x = {name: value.astype(np.float64) for name, value in initial().items()}
    owed = [[np.zeros_like(flat(x, bucket)) for bucket in BUCKETS] for _ in range(RANKS)]
    chosen = [np.arange(math.ceil(0.25 * len(owed[0][i]))) for i in range(len(BUCKETS))]
    history = []
    for step in range(1, STEPS + 1):
        if step != BAD:
            for i, bucket in enumerate(BUCKETS):
                sent = np.arange(len(owed[0][i])) if step <= dense_steps else chosen[i]
                total, norms = np.zeros_like(owed[0][i]), 0.0
                for rank in range(RANKS):
                    g = flat(share(rank, step), bucket)
                    owed[rank][i] = owed[rank][i] + g
                    total[sent] += owed[rank][i][sent]
                    owed[rank][i][sent] = 0
                    norms = norms + np.abs(owed[rank][i] + g).sum(1)
                chosen[i] = np.argsort(-norms, kind="stable")[: len(chosen[i])]
                place = 0
                for name in bucket:
                    size = math.prod(SHAPES[name])
                    x[name] = x[name] - RATE * total.reshape(-1)[place : place + size].reshape(SHAPES[name])
                    place += size
        history.append(dict(x))
    return history, owed


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict]:
    return [answer.value for answer in two_ranks.run(trained, chunks_recipe(dense=0.25), STEPS, bad=BAD)]


@pytest.mark.full
def test_it_is_the_transcription(ranks):
    parameters, owed = transcribed(dense_steps=5)
    for rank, record in enumerate(ranks):
        for step, expected in enumerate(parameters):
            for name in SHAPES:
                np.testing.assert_allclose(
                    record["parameters"][step][name], expected[name], rtol=1e-4, atol=1e-5, err_msg=f"{step} {name}"
                )
        for i, residual in enumerate(owed[rank]):
            np.testing.assert_allclose(record["own"][f"residual.{i}"], residual.reshape(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_what_waits_and_what_was_sent_is_all_there_was(ranks):
    """The sum of all gradients is what parameters moved by and what ranks still owe."""
    for i, bucket in enumerate(BUCKETS):
        shares = (share(rank, step) for rank in range(RANKS) for step in range(1, STEPS + 1) if step != BAD)
        total = sum(flat(values, bucket) for values in shares)
        moved = (flat(initial(), bucket) - flat(ranks[0]["parameters"][-1], bucket)) / RATE
        owed = sum(record["own"][f"residual.{i}"] for record in ranks).reshape(-1, CHUNK)
        np.testing.assert_allclose(moved + owed, total, rtol=1e-3, atol=1e-2)
    assert any(np.abs(value).max() > 0 for value in ranks[0]["own"].values())


@pytest.mark.full
@pytest.mark.parametrize("wire", [pytest.param("float32", marks=pytest.mark.slow), "float16"])
def test_what_is_not_finite_on_one_rank_leaves_all_as_it_was(two_ranks, wire):
    for answer in two_ranks.run(trained, chunks_recipe(wire), STEPS, bad=BAD):
        record = answer.value
        assert not np.isfinite(record["norms"][BAD - 1]) or record["progress"]["skipped_steps"] == 1
        for kind in ("parameters", "own_by_step"):
            for name, before in record[kind][BAD - 2].items():
                np.testing.assert_array_equal(record[kind][BAD - 1][name], before)
        assert all(np.isfinite(value).all() for value in record["own"].values())


@pytest.mark.full
def test_a_fraction_of_1_is_the_exchange_of_gradients_to_rounding(two_ranks):
    adamw = {"name": "adamw", "max_grad_norm": 5.0}
    all_of_them = two_ranks.run(trained, chunks_recipe(optimizer=adamw, fraction=1.0), STEPS)[0].value
    plain = two_ranks.run(trained, exchange_recipe(STEPS, optimizer=adamw), STEPS)[0].value
    for step in range(STEPS):
        for name in SHAPES:
            computed, expected = (each["parameters"][step][name] for each in (all_of_them, plain))
            np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(all_of_them["norms"], plain["norms"], rtol=1e-5)


@pytest.mark.slow
def test_float16_on_the_wire_is_near(two_ranks):
    wide, narrow = (
        two_ranks.run(trained, chunks_recipe(wire, dense=0.25), 8)[0].value for wire in ("float32", "float16")
    )
    for name in SHAPES:
        difference = np.abs(wide["parameters"][7][name] - narrow["parameters"][7][name]).max()
        assert 0 < difference < 0.01 * np.abs(wide["parameters"][7][name] - initial()[name]).max(), name


@pytest.mark.full
def test_bytes_are_those_that_collectives_were_given_in_either_stage(ranks):
    for record in ranks:
        assert record["stated_bytes"] == record["bytes"]
        assert record["bytes"][4] > 2.5 * record["bytes"][5]
        assert [step for step, _ in record["notices"]] == [6]
        assert record["traces"] == 1
        assert record["wire_bytes"] == record["bytes"][-1]


@pytest.mark.full
@pytest.mark.parametrize("stop", [pytest.param(3, marks=pytest.mark.slow), 9])
def test_a_resumed_run_equals_an_uninterrupted_one(two_ranks, stop):
    for answer in two_ranks.run(trained_in_parts, chunks_recipe("float16", dense=0.25), 14, stop):
        whole, parts = answer.value
        for name in SHAPES:
            np.testing.assert_array_equal(whole["parameters"][-1][name], parts["parameters"][-1][name])
        for name, value in whole["own"].items():
            np.testing.assert_array_equal(value, parts["own"][name])
        assert whole["progress"] == parts["progress"]


@pytest.mark.slow
def test_a_toy_learns_with_a_tenth_of_the_gradients(two_ranks, store, tmp_path):
    recipe = toy_recipe(
        exchange={"method": "largest_chunks", "dense": 0.2},
        phase={"learning_rate": 0.03},
        execution={"micro_batch": 8, "evaluate_steps": 0, "consistency_steps": 4},
    )
    two_ranks.run(train_rank, store.path, tmp_path / "run", recipe)
    lines = metrics(tmp_path / "run")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]]) - 0.03
    assert lines[-1]["bytes_reduced"] < 0.15 * lines[0]["bytes_reduced"]


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ({"fraction": 0.0}, r"exchange\.fraction = 0\.0: expected more than 0"),
        ({"fraction": 1.5}, r"exchange\.fraction = 1\.5: expected .*at most 1"),
        ({"chunk": 8}, r"exchange\.chunk = 8: expected at least 16"),
        ({"dense": 1.5}, r"exchange\.dense = 1\.5: expected .*at most 1"),
        ({"interval": 4}, r"exchange\.interval = 4: exchange\.method = 'largest_chunks' has no such setting"),
        ({"method": "gradients"}, r"exchange\.fraction = 0\.25: exchange\.method = 'gradients' has no such setting"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(exchange, message):
    with pytest.raises(UserError, match=message):
        chunks_recipe(**exchange)
