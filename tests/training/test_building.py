"""The profile of backward, and the plan that a run keeps."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.costs import buckets
from bert_horovod.costs.buckets import BackwardProfile, BucketPlan, by_size
from bert_horovod.costs.exchanges import Link
from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.training.building import expect, fast_link_warning, measure_profile
from tests.toy_runs import losses, metrics, newest, train, train_rank, training_state
from tests.toys import toy_recipe

AUTO = {"micro_batch": 8, "bucket_bytes": "auto", "checkpoint_steps": 4}


@pytest.mark.full
@pytest.mark.parametrize("xla", ["off", "elementwise", "layers"])
def test_a_profile_has_a_time_for_each_gradient_in_the_order_of_backward(xla):
    model = {"num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 1024}  # layers take 10 ms and more
    recipe = toy_recipe(execution={"micro_batch": 32, "xla": xla}, model=model)
    synthetic = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]))
    profile = measure_profile(synthetic.step, synthetic.rows.micro_batches[0], synthetic.inputs(), World())
    assert set(profile.ready_s) == set(synthetic.step.shapes)
    assert 0 < profile.forward_s < profile.end_s
    assert all(0 < ready <= profile.end_s for ready in profile.ready_s.values())
    layers = [profile.ready_s[f"bert.encoder.layer.{i}.attention.self.query.weight"] for i in range(3)]
    assert layers == sorted(layers, reverse=True)
    assert profile.ready_s[WORD_EMBEDDINGS] < layers[0]  # the dense part, which the head makes
    assert profile.rows[WORD_EMBEDDINGS] == len(np.unique(synthetic.rows.micro_batches[0]["input_ids"]))


def test_what_is_expected_follows_from_plan_profile_and_link():
    shapes = {"a": (100,), "table": (50, 2)}
    profile = BackwardProfile(0.1, {"a": 0.9, "table": 0.2}, 1.0, {"table": 10})
    link = Link(0.01, 1e-3)
    expectation = expect(BucketPlan([["table"], ["a"]], "table"), shapes, "float16", profile, link)
    # table 0.2 to 0.41, a 0.9 to 1.11, 10 rows of 2 halves from 1.11: 0.05
    assert expectation.exposed_s == pytest.approx(0.16)
    assert expectation.floor_s == pytest.approx(0.05)
    assert expectation.bucket_bytes == [200, 200]
    assert "buckets of 0.0 + 0.0 MB and the looked-up rows of table, 1.0 MB sent" in expectation.describe(1e6)
    assert "expected wait 0.160 s" in expectation.describe(1e6)
    other = dataclasses.replace(
        expectation, plan=dataclasses.replace(expectation.plan, reduction="two_step"), exposed_s=0.25
    )
    text = dataclasses.replace(expectation, others=(other,)).describe(1e6)
    assert text.startswith("sums by ring: ")
    assert "expected wait 0.160 s a step (two_step: 0.250 s)" in text
    assert expectation.exposed_s == buckets.seconds(expectation.plan, shapes, 2, profile, link) - 1.0


def train_two(two_ranks, store, output_dir: Path, max_steps: int, **sections) -> Path:
    recipe = toy_recipe(execution=AUTO, **sections)
    two_ranks.run(train_rank, store.path, output_dir, recipe, max_steps=max_steps)
    return output_dir


@pytest.mark.slow
def test_a_resumed_run_keeps_its_buckets_and_equals_an_uninterrupted_one(two_ranks, store, tmp_path):
    numerics = {"wire": "float16"}
    whole = train_two(two_ranks, store, tmp_path / "whole", 4, numerics=numerics)
    first = training_state(whole)["progress"]
    assert first["plan"]["reduction"] in ("ring", "two_step")
    assert first["plan"]["made_for"]["bucket_bytes"] == "auto"
    assert sorted(name for bucket in first["plan"]["buckets"] for name in bucket) == sorted(
        name for name in first["wire_maxima"] if not name.endswith("/rows")
    )
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    for output_dir in (whole, copy):
        train_two(two_ranks, store, output_dir, 8, numerics=numerics)
        assert training_state(output_dir)["progress"]["plan"] == first["plan"]
    assert (newest(whole) / "model.safetensors").read_bytes() == (newest(copy) / "model.safetensors").read_bytes()
    assert losses(whole) == losses(copy)


@pytest.mark.full
def test_the_int8_wire_learns_as_float32_does_with_equal_ranks_and_sends_tables_whole(two_ranks, store, tmp_path):
    curves = {}
    for wire in ("float32", "int8"):
        recipe = toy_recipe(execution={"micro_batch": 8, "consistency_steps": 2}, numerics={"wire": wire})
        two_ranks.run(train_rank, store.path, tmp_path / wire, recipe, max_steps=6)
        curves[wire] = losses(tmp_path / wire)
    plan = training_state(tmp_path / "int8")["progress"]["plan"]
    assert (plan["reduction"], plan["rows"]) == ("two_step", None)
    assert curves["int8"][0] == curves["float32"][0]  # before the first exchange
    assert curves["int8"] != curves["float32"]
    assert curves["int8"] == pytest.approx(curves["float32"], rel=5e-3)


def warnings(world: World, recipe: Recipe, peaks: list[float | None]) -> list[str]:
    """What a run says on devices of these peaks, in FLOP/s of all ranks, which rank 0 knows; one micro-batch a step."""
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    phase = SimpleNamespace(settings=recipe.phase[0], recipe=recipe, micro_batches=1)
    runs = [
        SimpleNamespace(world=world, phase=phase, peak_flops_per_s=peak if world.rank == 0 else None) for peak in peaks
    ]
    return [fast_link_warning(run, shapes, None) for run in runs]


@pytest.mark.full
def test_where_nothing_is_planned_computation_is_estimated_by_the_devices_peak(two_ranks):
    recipe = toy_recipe(exchange={"method": "largest_chunks"})
    for slow, fast, unknown in (answer.value for answer in two_ranks.run(warnings, recipe, [1e3, 1e30, None])):
        assert slow.startswith("warning: exchange.method = 'largest_chunks' saves at most ")
        assert "(link measured, computation estimated)" in slow
        assert fast == unknown == ""
    assert warnings(World(), recipe, [1e3]) == [""]


def test_a_plan_that_was_measured_is_what_is_judged():
    recipe = toy_recipe(exchange={"method": "onebit_adam"})
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    profile = BackwardProfile(0.1, dict.fromkeys(shapes, 0.5), 1.0, {WORD_EMBEDDINGS: 10})
    world = SimpleNamespace(size=2)
    run = SimpleNamespace(world=world, phase=SimpleNamespace(recipe=recipe, micro_batches=1))
    for s_per_byte, warned in ((1e-9, True), (1e-3, False)):
        expectation = expect(by_size(shapes, "auto"), shapes, "float32", profile, Link(0.0, s_per_byte))
        assert ("(link and backward measured)" in fast_link_warning(run, shapes, expectation)) == warned


@pytest.mark.slow
def test_buckets_chosen_by_measurement_change_nothing_beyond_rounding(two_ranks, store, tmp_path):
    alone = train(store, tmp_path / "alone", max_steps=6)
    planned = train_two(two_ranks, store, tmp_path / "planned", 6)
    for a, b in zip(metrics(alone), metrics(planned), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
