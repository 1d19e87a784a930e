"""Whole runs of the methods that freeze v: they learn, go on where they were, and mind phases, skipped steps and K."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.compressed.staged import limited
from bert_horovod.runs.state import Progress
from bert_horovod.runtime.xla import compiled
from tests.exchange.moments import LEARNING_RATE, SHAPES, Toy, moments_recipe
from tests.toy_runs import losses, metrics, train
from tests.toys import more_rows

METHODS = {
    "onebit_adam": {"exchange": {"method": "onebit_adam", "dense": 0.4}},
    "onebit_lamb": {"exchange": {"method": "onebit_lamb", "dense": 0.4}, "optimizer": {"name": "lamb"}},
    **more_rows("rows.STAGED"),
}
# These, those of experiments in the full tier.
ADAM_LIKE = ["onebit_adam", *(pytest.param(name, marks=pytest.mark.full) for name in more_rows("rows.STAGED"))]


@pytest.mark.slow
def test_the_norm_of_another_thing_than_the_gradient_is_another_metric(store, tmp_path):
    execution = {"xla": "off", "log_steps": 1}
    exchange = {"method": "onebit_adam", "dense": 0.5}
    run = train(store, tmp_path, phase={"steps": 4, "warmup": 0.0}, exchange=exchange, execution=execution)
    known = [[name for name in ("gradient_norm", "exchange_norm") if line[name] is not None] for line in metrics(run)]
    assert known == [["gradient_norm"]] * 2 + [["exchange_norm"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_make_no_difference_in_any_stage(method, store, tmp_path):
    runs = [train(store, tmp_path / str(rows), execution={"micro_batch": rows}, **METHODS[method]) for rows in (32, 8)]
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), rtol=1e-5)


def values(toy: Toy) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in toy.state.variables().items()}


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "steps", "settings"),
    [("onebit_adam", 14, {}), ("onebit_lamb", 14, {}), *more_rows("rows.REMEMBERED")],
)
def test_what_is_remembered_is_all_that_a_resumed_run_needs(method, steps, settings):
    recipe = moments_recipe(method, **settings)
    whole = Toy(World(), recipe)
    for step in range(1, steps + 1):
        whole.step(step)
    whole.exchange.to_progress()
    progress = json.loads(json.dumps(asdict(whole.state.progress)))
    resumed = Toy(World(), recipe, progress=Progress(**progress), values=values(whole))
    for step in range(steps + 1, 21):
        whole.step(step)
        resumed.step(step)
    for name, value in values(whole).items():
        np.testing.assert_array_equal(values(resumed)[name], value, err_msg=name)


def moving(toy: Toy, first: int, last: int) -> list[dict[str, np.ndarray]]:
    toy.state.progress.mean_loss = 1.0
    toy.state.progress.updates += 30  # the mean of losses has settled
    return [toy.step(step, loss=9.0 if step == 16 else 1.0) for step in range(first, last)]


@pytest.mark.parametrize("method", ADAM_LIKE)
def test_after_a_loss_jump_v_learns_again(method):
    toy = Toy(World(), moments_recipe(method))
    states = moving(toy, 1, 31)
    notices = {step: str(state["notice"]) for step, state in enumerate(states, 1) if str(state["notice"])}
    assert sorted(notices) == [12, 16, 26]
    assert "the loss is 9, and was 1 in the mean of the steps before: 10 steps with dense gradients" in notices[16]
    v = [state["v/c.weight"] for state in states]
    np.testing.assert_array_equal(v[12], v[14])
    assert (v[20] != v[18]).any()
    np.testing.assert_array_equal(v[26], v[29])


@pytest.mark.parametrize("method", ADAM_LIKE)
def test_an_exchange_says_before_a_step_whether_its_norm_is_the_gradients(method):
    toy, names = Toy(World(), moments_recipe(method)), []
    for step in range(1, 16):
        names.append(toy.exchange.norm_metric)
        toy.step(step)
    assert names[0] == "gradient_norm"
    assert names[12:] == ["exchange_norm"] * 3  # v is frozen after step 12
    if method == "onebit_adam":
        assert names[:12] == ["gradient_norm"] * 12


def test_a_number_whose_gradients_were_tiny_while_v_learned_moves_no_further_than_adam_moves_it():
    """As the row of a rare word, which only the output matrix touched before."""
    toy = Toy(World(), moments_recipe("onebit_adam"))
    for step in range(1, 15):
        mine = {name: np.full(shape, 0.1, np.float32) for name, shape in SHAPES.items()}
        mine["c.weight"][2, 3] = 0.05 if step == 14 else 1e-6
        before = toy.state.parameters["c.weight"].numpy()
        state = toy.step_with(mine, np.zeros(9, np.int32), np.zeros((9, 33), np.float32), step)
    moved = np.abs(state["c.weight"] - before)[2, 3] / LEARNING_RATE
    # (1 - beta_1) / sqrt(1 - beta_2) by a gradient alone, at most 0.9 by the momentum before, and the weight decay.
    assert moved < 0.1 * np.sqrt(10) + 0.9 + 0.5


def test_a_gradient_that_is_not_finite_is_not_limited_to_a_finite_one():
    gradient, v = tf.constant([np.inf, -np.inf, np.nan, 9.0, -0.5, 0.0]), tf.constant([1.0, 0.0, 1.0, 4.0, 1.0, 0.0])
    assert limited(gradient, v, 2.0).numpy()[3:].tolist() == [4.0, -0.5, 0.0]
    for function in (limited, compiled(limited)):
        assert not np.isfinite(function(gradient, v, 2.0).numpy()[:3]).any()


def test_a_tensor_without_gradient_has_a_ratio():
    """The published code leaves its mean ratio at 0."""
    toy = Toy(World(), moments_recipe("onebit_lamb"))
    for step in range(1, 13):
        mine = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        mine["c.weight"] += np.float32(0.1)
        toy.step_with(mine, np.zeros(9, np.int32), np.zeros((9, 33), np.float32), step)
    toy.exchange.to_progress()
    assert min(toy.state.progress.exchange["mean_ratio"]) > 0
    state = toy.step(13)
    assert all(np.isfinite(state[name]).all() for name in SHAPES)
