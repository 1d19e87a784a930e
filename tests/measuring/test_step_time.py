"""The step on synthetic rows: what it computes, and the process that times it on request."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from bert_horovod.costs.derived import derive
from bert_horovod.costs.products import VOCABULARY
from bert_horovod.errors import UserError
from bert_horovod.measuring import matrix, synthetic
from bert_horovod.measuring.configuration import SIZES, describe, size_recipe, step_flops, step_products
from bert_horovod.measuring.step_time import WARM_UP, TimedStep, trace
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table
from tests.horovod_runs import PATIENCE_S
from tests.toys import TOY_STEP

PROJECT = Path(__file__).resolve().parents[2]


def toy(**sections) -> Recipe:
    return recipe_from_table(TOY_STEP | sections)


def test_the_step_trains():
    step = TimedStep(toy())
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    step.warm_up()
    assert step.state.progress.step == step.state.progress.updates == WARM_UP
    after = step.state.parameters
    changed = [name for name, value in before.items() if (value != after[name].numpy()).any()]
    assert len(changed) == len(before)


@pytest.mark.parametrize("gpu", [False, True])
def test_steps_in_a_row_are_all_done_and_counted(monkeypatch, gpu):
    monkeypatch.setattr(synthetic, "has_gpu", lambda: gpu)
    step = TimedStep(toy())
    seconds = step.seconds(3)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert step.state.progress.step == step.state.progress.updates == 3
    assert step.seconds(0) == []


def test_forward_and_backward_alone_change_no_parameter():
    step = TimedStep(toy())
    before = step.state.hash()
    assert step.forward_backward() > 0
    assert step.state.hash() == before


def test_the_operations_are_those_that_a_run_would_log():
    recipe = toy()
    assert step_flops(recipe) == 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    assert sum(product.flops for product in step_products(recipe)) * 3 == step_flops(recipe)


def test_upper_layers_train_alone_where_the_phase_says_so():
    recipe = toy(phase=[{"sequence_length": 32, "trained_layers": 1}])
    assert step_flops(recipe) == 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    step = TimedStep(recipe)
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    step.run()
    changed = {name for name, value in before.items() if (value != step.state.parameters[name].numpy()).any()}
    assert changed <= set(step.state.trained)
    assert "bert.encoder.layer.1.output.dense.weight" in changed


def test_the_products_of_a_step_are_those_of_what_trains(monkeypatch):
    monkeypatch.setattr(matrix, "_seconds", lambda *_: (1.0, 10.0, 100.0))  # forward, left and right gradient
    whole = toy()
    count = sum(product.count for product in step_products(whole))
    assert matrix.step_seconds(whole) == 111.0 * count
    recipe = toy(phase=[{"sequence_length": 32, "trained_layers": 1}])
    upper = step_products(recipe, 1)
    without_table = sum(product.count for product in upper if product.name != VOCABULARY)
    assert 0 < without_table < sum(product.count for product in upper)
    backward = 10.0 * sum(product.count for product in upper) + 100.0 * without_table
    assert matrix.step_seconds(recipe) == 1.0 * count + backward


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_a_recipe_whose_rows_and_settings_may_be_others(name):
    recipe = size_recipe(name, ["numerics.precision=bfloat16", "execution.xla=off"], rows=3, length=24)
    assert (recipe.execution.micro_batch, recipe.phase[0].sequence_length) == (3, 24)
    assert describe(recipe).endswith("3 rows x 24, bfloat16, adamw, XLA off")
    assert size_recipe(name, []).execution.micro_batch == SIZES[name].rows


@pytest.mark.full
@pytest.mark.parametrize("products", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_process_answers_each_number_with_as_many_seconds(products):
    recipe = toy(execution={"micro_batch": 4, "xla": "off" if products else "elementwise", "threads": 1})
    request = {"recipe": recipe_to_table(recipe), "products": products}
    done = subprocess.run(
        [sys.executable, "-m", "bert_horovod.measuring.step_time", json.dumps(request)],
        input="1\n2\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=PROJECT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "XLA service" not in done.stderr  # nor what else a library says of itself
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(answer) for answer in answers] == [1, 2]
    assert all(seconds > 0 for answer in answers for seconds in answer)


def test_a_second_trace_in_the_same_directory_is_told_from_the_first(tmp_path):
    first = trace(lambda: tf.zeros([2]), tmp_path / "a")
    assert trace(lambda: tf.zeros([2]), tmp_path / "b") != first


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write a trace there"):
        trace(print, tmp_path / "file" / "below")
