"""The timed step: what it computes, what is made of its times, real ranks, and the process that times it on request."""

import contextlib
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.derived import VOCABULARY, Product, derive
from bert_horovod.errors import UserError
from bert_horovod.measuring import configuration, synthetic
from bert_horovod.measuring.bench import COMMUNICATION, WARM_UP, Bench, hidden_share, parts, trace, warmed_up
from bert_horovod.measuring.configuration import (
    SIZES,
    ProductSeconds,
    describe_recipe,
    matrix_seconds,
    size_recipe,
    step_flops,
    step_products,
    total_seconds,
)
from bert_horovod.measuring.synthetic import LoneRank, TimedStep, phase_batch, synthetic_step
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table, recipe_to_toml
from bert_horovod.training.step_results import StepResult, StepTimes
from lab.contestants import METHODS
from lab.delayed import delayed
from tests.horovod_runs import PROJECT, run_process, run_script
from tests.lab.test_delayed import DELAYS
from tests.toys import TOY_STEP, toy_recipe, toy_recipe_table


def toy(**sections) -> Recipe:
    return recipe_from_table(TOY_STEP | sections)


def timed(recipe: Recipe, micro_batches: int = 1) -> TimedStep:
    return synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]), micro_batches)


def test_the_step_trains_until_it_is_warm():
    step = timed(toy())
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    assert warmed_up(step) > 0
    assert step.state.progress.step == step.state.progress.updates == WARM_UP
    after = step.state.parameters
    changed = [name for name, value in before.items() if (value != after[name].numpy()).any()]
    assert len(changed) == len(before)


@pytest.mark.parametrize(("gpu", "expected"), [(False, [100, 1, 1]), (True, [101, 1, 0])])
def test_steps_in_a_row_are_all_done_and_counted_and_the_first_with_its_compilation(monkeypatch, gpu, expected):
    """On a GPU a step is enqueued before the one before it has ended."""
    start, starts_s, clock = synthetic.TimedStep._start, [100, 1, 1], [0]

    def timed_start(self, *words):
        clock.append(clock[-1] + starts_s[len(clock) - 1])
        return start(self, *words)

    monkeypatch.setattr(synthetic, "has_gpu", lambda: gpu)
    monkeypatch.setattr(synthetic.TimedStep, "_start", timed_start)
    monkeypatch.setattr(synthetic, "time", SimpleNamespace(perf_counter=lambda: clock[-1]))
    step = timed(toy())
    assert step.seconds(3) == expected
    assert len(step.results) == 3
    assert step.state.progress.step == step.state.progress.updates == 3
    assert step.seconds(0) == []


@pytest.mark.full
def test_forward_and_backward_alone_change_no_parameter():
    step = timed(toy())
    before = step.state.hash()
    assert parts(step, 2, {"micro_batches": 1, "step_s": 1.0})["forward_backward_s"] > 0
    assert step.state.hash() == before


def test_micro_batches_that_are_left_out_take_as_long_as_the_first_one(monkeypatch):
    recipe = toy(phase=[{"sequence_length": 32, "global_batch": 20}])  # five micro-batches of four rows
    bench = Bench(recipe, World())

    def seconds(step: TimedStep, steps: int) -> list[float]:
        times = StepTimes([(10.0, 11.0), (11.5, 12.5)], [(12.0, 13.0)], reduced=13.0, updated=13.9)
        step.results, step.waits_s = [StepResult({}, True, {}, times)] * steps, [0.25] * steps
        return [4.5] * steps

    monkeypatch.setattr(TimedStep, "seconds", seconds)
    measured = bench.run(3, warm_up=1)
    # From begin to begin: what lies between two micro-batches counts. Two of five micro-batches waited 0.25 s.
    assert measured["step_s"] == pytest.approx(4.5 + 3 * (1.5 + 0.125))
    assert measured["input_wait_s"] == pytest.approx(0.25 * 5 / 2)
    assert measured["rows_per_s"] == pytest.approx(20 / measured["step_s"])
    assert (measured["micro_batches"], len(bench.step.rows.micro_batches)) == (5, 2)


@pytest.mark.full
def test_a_lone_rank_does_its_share():
    bench = Bench(toy(phase=[{"sequence_length": 32, "global_batch": 16}]), LoneRank(4), ("on", "off"))
    measured = bench.run(1, warm_up=1)
    assert (measured["world_size"], measured["micro_batches"]) == (4, 1)
    assert list(measured["communication"]) == ["off"]


def test_the_operations_are_those_that_a_run_would_log():
    recipe = toy()
    assert step_flops(recipe) == 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    assert sum(product.flops for product in step_products(recipe)) * 3 == step_flops(recipe)


def test_upper_layers_train_alone_where_the_phase_says_so():
    recipe = toy(phase=[{"sequence_length": 32, "trained_layers": 1}])
    assert step_flops(recipe) == 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    step = timed(recipe)
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    step.run()
    changed = {name for name, value in before.items() if (value != step.state.parameters[name].numpy()).any()}
    assert changed <= set(step.state.trained)
    assert "bert.encoder.layer.1.output.dense.weight" in changed


def test_the_products_of_a_step_are_those_of_what_trains(monkeypatch):
    monkeypatch.setattr(configuration, "_seconds", lambda *_: (1.0, 10.0, 100.0))  # forward, left and right gradient
    whole = toy()
    count = sum(product.count for product in step_products(whole))
    assert configuration.step_seconds(whole) == 111.0 * count
    recipe = toy(phase=[{"sequence_length": 32, "trained_layers": 1}])
    upper = step_products(recipe, 1)
    without_table = sum(product.count for product in upper if product.name != VOCABULARY)
    assert 0 < without_table < sum(product.count for product in upper)
    backward = 10.0 * sum(product.count for product in upper) + 100.0 * without_table
    assert configuration.step_seconds(recipe) == 1.0 * count + backward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_product_has_its_three_times_and_equal_ones_the_same(dtype):
    weights = Product("weights", 3, 1, 8, 16, 32)
    products = [
        weights,
        Product("scores", 1, 4, 8, 6, 5),
        Product("context", 1, 4, 8, 5, 6, transposed=False),
        weights._replace(name="others of that size", count=1),
    ]
    timed = matrix_seconds(products, dtype, samples=2)
    assert [entry.product for entry in timed] == products
    assert all(seconds > 0 for entry in timed for seconds in entry[1:])
    assert timed[0][1:] == timed[3][1:]


def test_the_total_counts_each_product_as_often_as_it_is_computed():
    product = Product("x", 3, 1, 1, 1, 1)
    timed = [ProductSeconds(product, 1.0, 2.0, 4.0), ProductSeconds(product._replace(count=2), 10.0, 0.0, 0.0)]
    assert total_seconds(timed) == 3 * 7 + 2 * 10


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_a_recipe_whose_rows_and_settings_may_be_others(name):
    recipe = size_recipe(name, ["numerics.precision=bfloat16", "execution.xla=off"], rows=3, length=24)
    assert (recipe.execution.micro_batch, recipe.phase[0].sequence_length) == (3, 24)
    assert describe_recipe(recipe).endswith("3 rows x 24, bfloat16, adamw, XLA off")
    assert size_recipe(name, []).execution.micro_batch == SIZES[name].rows


@pytest.mark.full
@pytest.mark.parametrize("products", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_process_answers_each_number_with_as_many_seconds(products):
    recipe = toy(execution={"micro_batch": 4, "xla": "off" if products else "elementwise", "threads": 1})
    request = {"recipe": recipe_to_table(recipe), "products": products}
    command = [sys.executable, "-m", "bert_horovod.measuring.bench", json.dumps(request)]
    done = run_process(command, os.environ | {"CUDA_VISIBLE_DEVICES": ""}, input="1\n2\n")
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


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(1.0, 2.0)], 1.0),
        ([(9.0, 11.0)], 0.5),
        ([(1.0, 3.0), (2.0, 4.0), (10.0, 13.0)], 0.5),  # together from 1 to 4, and from 10 to 13
        ([(1.0, 9.0), (2.0, 3.0)], 1.0),
        ([], 1.0),
    ],
)
def test_the_share_of_hidden_communication_counts_each_moment_once(spans, share):
    assert hidden_share(StepTimes([(0.0, 5.0), (5.0, 10.0)], spans, 14.0, 15.0)) == pytest.approx(share)


TWO_RANKS = toy_recipe(  # several buckets, of which the first leaves early
    execution={"micro_batch": 8, "bucket_bytes": 20000}, numerics={"wire": "float16"}
)


def measure_step(world: World, recipe: Recipe, delays: dict | None = None, steps: int = 2, warm_up: int = 1) -> dict:
    """A job for two_ranks: the step with each kind of communication; `delays`: it sleeps instead of computing."""
    with delayed(delays) if delays else contextlib.nullcontext():
        return Bench(recipe, world, COMMUNICATION).run(steps, warm_up)


@pytest.mark.full
def test_two_ranks_measure_the_step_with_communication_off_overlapped_and_held_back(two_ranks):
    assert_measured(two_ranks.run(measure_step, TWO_RANKS, DELAYS)[0].value)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_scaling_benchmark_is_measured(two_ranks, method):
    settings, _, steps, warm_up = METHODS[method]
    recipe = recipe_from_table(toy_recipe_table(execution={"micro_batch": 16, "bucket_bytes": 20000}), settings)
    quick = DELAYS | {"forward_s": 0.01, "head_s": 0.01, "layers_s": [0.01, 0.01], "embeddings_s": 0.01}
    measured = two_ranks.run(measure_step, recipe, quick, steps, warm_up)[0].value
    everything = 4 * sum(math.prod(shape) for shape in pretraining_shapes(recipe.model, pairs=True).values())
    assert 0 < measured["wire_bytes"] < everything
    assert measured["step_s"] > 0.05
    assert measured["predicted_s"] is None  # the prediction is of gradients
    held_back = recipe.exchange.overlaps and recipe.exchange.cycle == 1
    assert set(measured["communication"]) == {"off", "on"} | ({"held_back"} if held_back else set())


@pytest.mark.slow
def test_the_command_measures_under_horovodrun(tmp_path):
    recipe, trace = tmp_path / "recipe.toml", tmp_path / "trace"
    recipe.write_text(recipe_to_toml(TWO_RANKS))
    (tmp_path / "delays.json").write_text(json.dumps(DELAYS))
    flags = ["--recipe", str(recipe), "--steps", "2", "--communication", *COMMUNICATION, "--trace", str(trace)]
    done = run_script(2, str(PROJECT / "lab" / "delayed.py"), str(tmp_path / "delays.json"), *flags, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "step_s" in line]
    assert_measured(json.loads(line.partition("{")[1] + line.partition("{")[2]))
    assert_traced(trace)


def assert_measured(measured: dict) -> None:
    assert (measured["world_size"], measured["micro_batches"]) == (2, 2)
    kinds = measured["communication"]
    assert all(kinds[kind]["step_s"] >= 2 * 0.65 + 0.02 for kind in COMMUNICATION)
    assert measured["exposed_s"] == kinds["on"]["step_s"] - kinds["off"]["step_s"]
    assert measured["step_s"] == kinds["on"]["step_s"]
    assert 0 <= measured["hidden_share"] <= 1
    assert all(0 <= kinds[kind]["cores_busy"] <= 1 for kind in COMMUNICATION)
    assert measured["wire_bytes"] == measured["bytes_reduced"] >= sum(measured["bucket_bytes"]) > 0
    assert 0 < measured["floor_s"] < 1
    assert measured["predicted_s"] >= kinds["off"]["step_s"]


def assert_traced(trace: Path) -> None:
    events = json.loads((trace / "step.json").read_text())["traceEvents"]
    ours = [event for event in events if event["pid"] == 0 and event["ph"] == "X"]
    horovods = [event for event in events if event["pid"] >= 1000 and event.get("name") == "ALLREDUCE"]
    backward = next(event for event in ours if event["name"] == "micro-batch 1")
    # Horovod's own clock and ours agree: its all-reduces lie within our step.
    assert horovods
    begin, end = min(event["ts"] for event in ours), max(event["ts"] + event["dur"] for event in ours)
    assert all(begin <= event["ts"] <= end for event in horovods)
    # The head's bucket is under way while backward goes on.
    early = [
        event for event in ours if event["tid"] == "all-reduces" and event["ts"] < backward["ts"] + backward["dur"]
    ]
    assert early
