"""DreamDDP: parts are averaged in turn, and all at once where ranks must be equal."""

import math

import numpy as np
import pytest

from bert_horovod.errors import UserError
from bert_horovod.exchange.local.dreamddp import judged
from bert_horovod.exchange.local.local_step import cut
from tests.exchange.exchange_jobs import SHAPES, exchange_recipe, trained
from tests.exchange.promises import SGD, dream
from tests.toy_runs import metrics, newest, train_rank
from tests.toys import toy_recipe


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer", [SGD, pytest.param({"name": "adamw", "max_grad_norm": 1.0}, marks=pytest.mark.slow)]
)
def test_a_full_average_each_step_is_that_of_local_updates(two_ranks, optimizer):
    every_step = dream(optimizer, interval=1, full_interval=1)
    local = exchange_recipe(216, exchange={"method": "parameters", "interval": 1}, optimizer=optimizer)
    record, expected = (two_ranks.run(trained, recipe, 6)[0].value for recipe in (every_step, local))
    for name in SHAPES:
        np.testing.assert_array_equal(record["parameters"][-1][name], expected["parameters"][-1][name])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_toy_learns_and_resumes_in_two_micro_batches(two_ranks, store, tmp_path, precision):
    recipe = toy_recipe(
        exchange={"method": "dreamddp", "interval": 4, "full_interval": 8},
        phase={"learning_rate": 0.03, "steps": 24},
        numerics={"precision": precision, "initial_loss_scale": 2.0**20},
        execution={"micro_batch": 8, "checkpoint_steps": 8, "consistency_steps": 8},
    )
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for steps in (8, 24):
        two_ranks.run(train_rank, store.path, tmp_path / "stopped", recipe, max_steps=steps)
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        whole, stopped = ((newest(tmp_path / run) / file).read_bytes() for run in ("whole", "stopped"))
        assert whole == stopped
    lines = metrics(tmp_path / "whole")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]]) - 0.03


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_parts_hold_each_number_once_and_differ_by_a_row_at_most(parts):
    partition = cut(SHAPES, parts)
    assert len(partition) == parts
    counts = {name: np.zeros(shape[0], int) for name, shape in SHAPES.items()}
    sizes = []
    for part in partition:
        sizes.append(sum((end - begin) * math.prod(SHAPES[name][1:]) for name, begin, end in part))
        for name, begin, end in part:
            counts[name][begin:end] += 1
    assert all((count == 1).all() for count in counts.values())
    total = sum(math.prod(shape) for shape in SHAPES.values())
    assert max(abs(size - total / parts) for size in sizes) <= 7  # the longest row


def test_the_log_says_which_interval_hides_averages():
    assert "hidden; the smallest exchange.interval that hides it is 4" in judged(8, all_s=3.5, step_s=1.0)
    assert "warning: " in judged(2, all_s=3.5, step_s=1.8)
    assert "exchange.interval = 2 is too small to hide it; try 4" in judged(2, all_s=3.5, step_s=1.8)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"exchange": {"interval": 5}},
            r"exchange\.full_interval = 12: .*exchange\.interval = 5 steps; expected a mult",
        ),
        ({"execution": {"evaluate_steps": 6}}, r"execution\.evaluate_steps = 6: .*exchange\.full_interval = 12"),
        ({"numerics": {"wire": "float16"}}, r"numerics\.wire = 'float16': .*'dreamddp'.*expected float32"),
        ({"exchange": {"full_interval": 0}}, r"exchange\.full_interval = 0: expected at least 1"),
        ({"exchange": {"slow_beta": 0.5}}, r"exchange\.slow_beta = 0\.5: .*'dreamddp' has no such setting"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(sections, message):
    exchange = {"method": "dreamddp", "interval": 3, "full_interval": 12} | sections.get("exchange", {})
    with pytest.raises(UserError, match=message):
        exchange_recipe(24, **(sections | {"exchange": exchange}))
