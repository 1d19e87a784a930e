"""Methods that average parameters: what each does not share with others, and with which settings two are the same."""

import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bert_horovod.collectives.world import World
from bert_horovod.exchange.local.local_step import cut
from bert_horovod.recipe.sections import Recipe
from bert_horovod.training.hooks.base import Hook, StepEvent
from tests.exchange.exchange_jobs import SHAPES, exchange_recipe, trained
from tests.toy_runs import at_step, metrics, newest, train, train_rank, training_state
from tests.toys import more_rows, toy_recipe

EVERY = {"checkpoint_steps": 8, "evaluate_steps": 4, "consistency_steps": 4}


def local_recipe(interval: int, **execution) -> Recipe:
    return toy_recipe(
        optimizer={"name": "sgd", "max_grad_norm": 0.0},
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
    whole = train(
        store, tmp_path / "whole", optimizer={"name": "sgd", "max_grad_norm": 0.0}, phase={"learning_rate": 0.2}
    )
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
    ("method", "has_rule"),
    [
        ("largest_chunks", False),
        pytest.param("parameters", False, marks=pytest.mark.slow),
        ("dreamddp", False),
        *more_rows("rows.ALONE"),
    ],
)
def test_a_world_of_one_sends_nothing_and_is_no_other_training(method, has_rule):
    recipe = exchange_recipe(100, exchange={"method": method})
    record, plain = (trained(World(), each, 3) for each in (recipe, exchange_recipe()))
    assert (record["bytes"], record["wire_bytes"], record["own"]) == ([0, 0, 0], 0, {})
    for name in SHAPES if not has_rule else ():
        np.testing.assert_array_equal(record["parameters"][-1][name], plain["parameters"][-1][name])


def metrics_bytes(output_dir: Path) -> int:
    """Bytes of all parameters."""
    tensors = safetensors.numpy.load_file(newest(output_dir) / "model.safetensors")
    return sum(value.nbytes for value in tensors.values())


def stop_soon(world: World, store: Path, output_dir: Path, recipe: Recipe) -> None:
    """A job for two_ranks."""
    stop = at_step(5, lambda _: (output_dir / "stop").touch())
    train_rank(world, store, output_dir, recipe, hooks=(stop,))


@pytest.mark.full
def test_a_request_to_stop_waits_for_the_next_average(two_ranks, store, tmp_path):
    two_ranks.run(stop_soon, store.path, tmp_path / "run", local_recipe(4, **EVERY))
    assert training_state(tmp_path / "run")["progress"]["step"] == 8


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
