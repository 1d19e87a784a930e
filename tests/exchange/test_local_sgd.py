"""Local updates: with sgd and an interval of 1 they are averaged gradients; ranks are equal where one looks."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.training.hooks.base import Hook, StepEvent
from tests.exchange.exchange_jobs import SHAPES, exchange_recipe, trained
from tests.toy_runs import metrics, newest, train, train_rank, training_state
from tests.toys import toy_recipe

SGD = {"name": "sgd", "max_grad_norm": 0.0}
EVERY = {"checkpoint_steps": 8, "evaluate_steps": 4, "consistency_steps": 4}


def local_recipe(interval: int, **execution) -> Recipe:
    return toy_recipe(
        optimizer=SGD,
        phase={"learning_rate": 0.2},
        exchange={"method": "parameters", "interval": interval},
        execution={"micro_batch": 16, "evaluate_steps": 0, "consistency_steps": 0, **execution},
    )


def hashes_by_step(world: World, store: Path, output_dir: Path, recipe: Recipe, **job) -> dict[int, bytes]:
    """Train; the hash of this rank's state after each step: a job for two_ranks."""
    hashes = {}

    class Hashes(Hook):
        def step(self, event: StepEvent) -> None:
            hashes[event.step] = self.run.state.hash()

    train_rank(world, store, output_dir, recipe, hooks=(Hashes,), **job)
    return hashes


@pytest.mark.full
def test_with_an_interval_of_1_it_is_averaged_gradients_to_rounding(two_ranks, store, tmp_path):
    whole = train(store, tmp_path / "whole", optimizer=SGD, phase={"learning_rate": 0.2})
    two_ranks.run(train_rank, store.path, tmp_path / "local", local_recipe(1))
    lines = list(zip(metrics(whole), metrics(tmp_path / "local"), strict=True))
    assert len(lines) == 20
    for a, b in lines:
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5), a["step"]
    expected, parameters = (
        safetensors.numpy.load_file(newest(tmp_path / name) / "model.safetensors") for name in ("whole", "local")
    )
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_ranks_differ_between_averages_and_are_equal_after_them(two_ranks, store, tmp_path):
    recipe = local_recipe(4, **EVERY)
    mine, others = (answer.value for answer in two_ranks.run(hashes_by_step, store.path, tmp_path / "run", recipe))
    assert [step for step in mine if mine[step] == others[step]] == [4, 8, 12, 16, 20]
    lines = metrics(tmp_path / "run")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]])
    assert {line["bytes_reduced"] for line in lines} == {metrics_bytes(tmp_path / "run") / 4}


@pytest.mark.parametrize(
    "method",
    ["largest_chunks", "dreamddp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("parameters", "mt_dao"))],
)
def test_a_world_of_one_sends_nothing_and_is_no_other_training(method):
    recipe = exchange_recipe(100, exchange={"method": method})
    record, plain = (trained(World(), each, 3) for each in (recipe, exchange_recipe()))
    assert (record["bytes"], record["wire_bytes"], record["own"]) == ([0, 0, 0], 0, {})
    for name in SHAPES if method != "mt_dao" else ():  # which has a rule of its own
        np.testing.assert_array_equal(record["parameters"][-1][name], plain["parameters"][-1][name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rate", "settings"),
    [("adamw", 0.03, {}), ("lamb", 0.03, {}), ("lans", 0.03, {}), ("came", 0.003, {"beta_3": 0.99})],
)
def test_any_optimizer_learns_resumes_and_is_equal_after_averages(two_ranks, store, tmp_path, name, rate, settings):
    recipe = toy_recipe(
        optimizer={"name": name, "max_grad_norm": 0.5} | settings,
        phase={"learning_rate": rate},
        exchange={"method": "parameters", "interval": 4},
        execution={"micro_batch": 8, **EVERY},
    )
    mine, others = (answer.value for answer in two_ranks.run(hashes_by_step, store.path, tmp_path / "whole", recipe))
    assert [step for step in mine if mine[step] == others[step]] == [4, 8, 12, 16, 20]
    for steps in (8, 20):
        two_ranks.run(train_rank, store.path, tmp_path / "stopped", recipe, max_steps=steps)
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        whole, stopped = ((newest(tmp_path / run) / file).read_bytes() for run in ("whole", "stopped"))
        assert whole == stopped
    lines = metrics(tmp_path / "whole")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]]) - 0.01


def metrics_bytes(output_dir: Path) -> int:
    """Bytes of all parameters."""
    tensors = safetensors.numpy.load_file(newest(output_dir) / "model.safetensors")
    return sum(value.nbytes for value in tensors.values())


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(two_ranks, store, tmp_path):
    recipe = local_recipe(4, **EVERY)
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for steps in (8, 20):
        two_ranks.run(train_rank, store.path, tmp_path / "stopped", recipe, max_steps=steps)
    files = [newest(tmp_path / name) / "model.safetensors" for name in ("whole", "stopped")]
    assert files[0].read_bytes() == files[1].read_bytes()


def stop_soon(world: World, store: Path, output_dir: Path, recipe: Recipe) -> None:
    class Stopping(Hook):
        def begin(self, step: int) -> None:
            if step == 6:
                (output_dir / "stop").touch()

    train_rank(world, store, output_dir, recipe, hooks=(Stopping,))


@pytest.mark.full
def test_a_request_to_stop_waits_for_the_next_average(two_ranks, store, tmp_path):
    two_ranks.run(stop_soon, store.path, tmp_path / "run", local_recipe(4, **EVERY))
    assert training_state(tmp_path / "run")["progress"]["step"] == 8


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"exchange": {"interval": 2}}, r"exchange\.interval = 2: .*'gradients' has no such setting; expected 1"),
        (
            {"execution": {"reduction": "two_step"}},
            r"execution\.reduction = 'two_step': .*'float32' goes by ring alone",
        ),
        (
            {"execution": {"reduction": "ring"}, "numerics": {"wire": "int8"}},
            r"execution\.reduction = 'ring': .*'int8' goes by two_step alone; expected auto",
        ),
        (
            {"exchange": {"method": "largest_chunks"}, "numerics": {"wire": "int8"}},
            r"numerics\.wire = 'int8': .*'largest_chunks' sums its chunks by ring; expected float32 or float16",
        ),
        (
            {"exchange": {"method": "parameters"}, "optimizer": SGD, "numerics": {"wire": "float16"}},
            r"numerics\.wire = 'float16'.*expected float32",
        ),
        (
            {"exchange": {"method": "parameters", "interval": 3}, "optimizer": SGD},
            r"phase\.0\.steps = 20: .*every 3 steps \(exchange\.interval = 3\); expected a multiple",
        ),
        (
            {
                "exchange": {"method": "parameters", "interval": 4},
                "optimizer": SGD,
                "execution": {"checkpoint_steps": 10, "consistency_steps": 0},
            },
            r"execution\.checkpoint_steps = 10: .*expected a multiple",
        ),
        ({"exchange": {"method": "letters"}}, r"exchange\.method = 'letters': expected one of gradients, "),
        ({"exchange": {"method": "parameters", "interval": 0}}, r"exchange\.interval = 0: expected at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(sections, message):
    with pytest.raises(UserError, match=message):
        toy_recipe(**sections)


def test_max_steps_where_ranks_differ_are_refused(store, tmp_path):
    sections = {"exchange": {"method": "parameters", "interval": 4}, "execution": {"consistency_steps": 0}}
    with pytest.raises(UserError, match=r"--max_steps 6: .*every 4 steps"):
        train(store, tmp_path, 6, optimizer=SGD, **sections)
