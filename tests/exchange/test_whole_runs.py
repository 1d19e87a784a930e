"""Whole runs on two ranks of methods that keep a state of their own: they learn, and resume bit for bit."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.toy_runs import assert_same_files, losses, metrics, newest, train_rank
from tests.toys import exchange_of, more_rows, toy_recipe

LOCAL = {"method": "parameters", "interval": 4}
PARTS = {"method": "dreamddp", "interval": 4, "full_interval": 8}
DILOCO = {"method": "diloco", "interval": 8, "fragments": 2, "delay": 4}  # after 7 steps a sum has sent 3 of 4 rows
STAGED = {"method": "onebit_adam", "dense": 0.4}  # v is frozen after step 8
RUNS = {  # the exchange, the rate, how far it falls at least, the steps after which it is stopped, and other settings
    "local sgd": (LOCAL, 0.2, 0.0, (8,), {"optimizer": {"name": "sgd", "max_grad_norm": 0.0}}),
    "local adamw": (LOCAL, 0.03, 0.01, (8,), {}),
    "local lamb": (LOCAL, 0.03, 0.01, (8,), {"optimizer": {"name": "lamb"}}),
    "local lans": (LOCAL, 0.03, 0.01, (8,), {"optimizer": {"name": "lans"}}),
    "local parts": (PARTS, 0.03, 0.03, (8,), {"phase": {"steps": 24}}),
    "local parts, float16": (PARTS, 0.03, 0.03, (8,), {"phase": {"steps": 24}, "numerics": {"precision": "float16"}}),
    "diloco, float16": (DILOCO, 0.01, 0.03, (7,), {"numerics": {"wire": "float16"}}),
    "diloco, int8": (DILOCO, 0.01, 0.03, (7,), {"numerics": {"wire": "int8"}}),
    "int8": ({}, 0.03, 0.03, (9,), {"numerics": {"wire": "int8"}}),
    "powersgd": ({"method": "powersgd", "dense": 0.2, "rank": 2, "words": "largest_chunks"}, 0.03, 0.03, (9,), {}),
    "largest chunks": ({"method": "largest_chunks", "dense": 0.2}, 0.03, 0.03, (3, 8), {}),
    "1-bit Adam": (STAGED, 0.005, 0.0, (6, 14), {}),
    "1-bit LAMB": (STAGED | {"method": "onebit_lamb"}, 0.03, 0.0, (6, 14), {"optimizer": {"name": "lamb"}}),
    **more_rows("rows.WHOLE_RUNS"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_learns_and_goes_on_as_if_it_had_not_been_stopped(two_ranks, store, tmp_path, name):
    exchange, rate, fall, stops, more = RUNS[name]
    every = max(4, exchange_of(**exchange).agreement)
    recipe = toy_recipe(
        exchange=exchange,
        optimizer=more.get("optimizer", {}),
        numerics=more.get("numerics", {}),
        phase={"learning_rate": rate} | more.get("phase", {}),
        execution={"micro_batch": 8, "checkpoint_steps": every, "evaluate_steps": every, "consistency_steps": every},
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    two_ranks.run(train_rank, store.path, whole, recipe)
    for steps in (*stops, recipe.total_steps):
        two_ranks.run(train_rank, store.path, stopped, recipe, max_steps=steps)
    parts = [f"training/{path.name}" for path in newest(whole).glob("training/rank-*")]
    assert bool(parts) == (not name.startswith("local"))
    assert_same_files(whole, stopped, *parts)
    kept = [load_file(newest(whole) / part) for part in parts]
    assert all(any(array.any() for array in each.values()) for each in kept)
    assert len({(newest(whole) / part).read_bytes() for part in parts}) == len(parts)
    lines = metrics(whole)
    numbers = [line["loss"] for line in lines]
    assert numbers == losses(stopped)
    assert np.mean(numbers[-5:]) < np.mean(numbers[:5]) - fall
    if "dense" in exchange:
        assert lines[-1]["wire_bytes"] < 0.15 * lines[0]["wire_bytes"]
