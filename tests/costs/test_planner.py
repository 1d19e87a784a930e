"""Plans against arithmetic by hand, and against tables that others published."""

import dataclasses
import itertools
import math

import pytest

from bert_horovod.costs import buckets
from bert_horovod.costs.buckets import computed_profile
from bert_horovod.costs.choices import priced_choices
from bert_horovod.costs.derived import derive
from bert_horovod.costs.exchange_warnings import LEAST_GAIN, for_fast_link
from bert_horovod.costs.exchanges import ring
from bert_horovod.costs.planner import Device, Network, accumulation_bytes, plan_phase, slowest, update_bytes
from bert_horovod.exchange import methods
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table
from tests.horovod_runs import PROJECT
from tests.toys import more_rows

HOP = Network(1e9, share=1.0, latency_s=0.0)
DEVICE = Device("toy", 1e12, product_share=0.5)


def recipe(global_batch: int = 64, **sections) -> Recipe:
    phase = {"sequence_length": 128, "global_batch": global_batch, "steps": 100}
    phases = [phase | each for each in sections.pop("phase", [{}])]
    return recipe_from_table({"execution": {"micro_batch": 4}, "phase": phases, **sections})


def large(*overrides: str) -> Recipe:
    return load_recipe(PROJECT / "run" / "recipes" / "bert-large-lamb-64k.toml", overrides)


def test_one_rank_takes_the_time_of_its_products():
    toy = recipe()
    plan = plan_phase(toy, 0, 1, DEVICE, HOP)
    flops = derive(toy, toy.phase[0], 1).flops_per_row
    assert plan.micro_batches == 16
    assert plan.step_s == plan.forward_backward_s == pytest.approx(64 * flops / 0.5e12, rel=1e-9)
    assert (plan.communication_s, plan.exposed_s, plan.buckets, plan.efficiency) == (0, 0, 0, 1)
    assert plan.rows_per_s == pytest.approx(0.5e12 / flops)
    assert plan.tokens_per_s == pytest.approx(128 * plan.rows_per_s)
    assert plan.days == pytest.approx(100 * plan.step_s / 86400)
    assert plan.memory_bytes == derive(toy, toy.phase[0], 1, capability=DEVICE.capability).memory_bytes


def test_rows_that_fill_no_micro_batch_take_its_time_all_the_same():
    plan = plan_phase(recipe(65), 0, 2, DEVICE, HOP)
    assert plan.micro_batches == 9
    assert plan.forward_backward_s == pytest.approx(9 / 8 * plan_phase(recipe(), 0, 2, DEVICE, HOP).forward_backward_s)


def test_accumulation_and_update_take_the_time_of_their_bytes():
    toy = recipe()
    parameters = derive(toy, toy.phase[0], 1).parameters
    plan = plan_phase(toy, 0, 1, dataclasses.replace(DEVICE, memory_bytes_per_s=1e11), HOP)
    assert plan.accumulation_s == pytest.approx(16 * 12 * parameters / 1e11)  # float32: 4 + 4 read, 4 written
    # norm 4; parameters, gradients and two slots read twice; slots and parameters written
    assert plan.update_s == pytest.approx((4 + 2 * 16 + 8 + 4) * parameters / 1e11)
    assert plan.step_s == pytest.approx(plan.forward_backward_s + plan.accumulation_s + plan.update_s)


@pytest.mark.parametrize(
    ("optimizer", "precision", "micro_batches", "world_size", "expected"),
    [
        ("adamw", "float32", 1, 1, 4 + 2 * 16 + 8 + 4),
        ("lamb", "bfloat16", 1, 1, 2 + 2 * 14 + 8 + 4 + 2),
        ("lamb", "bfloat16", 1, 2, 4 + 2 * 16 + 8 + 4 + 2),  # reduced gradients are float32
        ("lamb", "bfloat16", 2, 1, 4 + 2 * 16 + 8 + 4 + 2),  # and so are accumulated ones
        ("sgd", "float32", 1, 1, 4 + 2 * 8 + 4),
    ],
)
def test_bytes_of_an_update(optimizer, precision, micro_batches, world_size, expected):
    toy = recipe(optimizer={"name": optimizer}, numerics={"precision": precision})
    assert update_bytes(toy, {"a": (10,)}, micro_batches, world_size) == 10 * expected


def test_one_micro_batch_accumulates_nothing():
    assert accumulation_bytes(recipe(), 10, 1) == 0
    assert accumulation_bytes(recipe(numerics={"precision": "float16"}), 10, 3) == 3 * 10 * 10


@pytest.mark.parametrize(("wire", "width"), [("float32", 4), ("float16", 2), ("int8", 1 + 2 / 256)])
def test_one_bucket_is_sent_after_backward(wire, width):
    toy = recipe(numerics={"wire": wire}, execution={"micro_batch": 4, "bucket_bytes": 1 << 40})
    plan = plan_phase(toy, 0, 4, DEVICE, Network(1e9, share=0.5, latency_s=0.001))
    payload = width * derive(toy, toy.phase[0], 4).parameters
    assert plan.buckets == 1
    hops = 4 if wire == "int8" else 6  # in two steps; of a ring
    assert plan.exposed_s == pytest.approx(plan.communication_s)
    assert plan.communication_s == pytest.approx(hops * 0.001 + 2 * 3 / 4 * payload / 0.5e9)


def test_more_ranks_are_faster_and_less_efficient_and_micro_batches_help():
    plans = [plan_phase(recipe(), 0, n, DEVICE, HOP) for n in (1, 2, 4, 8, 16)]
    for fewer, more in itertools.pairwise(plans):
        assert more.efficiency < fewer.efficiency <= 1
        assert 0 < more.exposed_s < more.communication_s
    assert plan_phase(recipe(1024), 0, 16, DEVICE, HOP).efficiency > plans[-1].efficiency


def test_a_link_without_end_costs_nothing_and_no_link_everything():
    free = plan_phase(recipe(), 0, 8, DEVICE, Network(1e18, latency_s=0.0))
    assert free.efficiency == pytest.approx(1, abs=1e-6)
    assert plan_phase(recipe(), 0, 8, DEVICE, Network(1e3)).efficiency < 1e-4


def test_the_plan_of_merged_gradients_ends_as_early_as_that_of_all_parameters():
    toy = recipe(16, model={"num_hidden_layers": 3})
    found = plan_phase(toy, 0, 4, DEVICE, HOP)
    profile = computed_profile(toy, toy.phase[0], 4, 0.5e12)
    shapes, link = pretraining_shapes(toy.model, toy.objective.pairs), ring(4, 1e9, 0.0)
    plan = buckets.by_profile(shapes, 4, profile, link)
    expected = buckets.seconds(plan, shapes, 4, profile, link)
    assert profile.end_s + found.exposed_s == pytest.approx(expected, rel=2 * buckets.SLACK)


@pytest.mark.parametrize(("global_batch", "bytes_per_s"), [(64, 1e9), (64, 1e11), (2048, 1e9), (2048, 1e10)])
def test_a_run_warns_of_a_fast_link_where_its_plan_says_that_float16_exposes_little(global_batch, bytes_per_s):
    network = Network(bytes_per_s, 1.0, 0.0)
    int8 = recipe(global_batch, numerics={"wire": "int8"})
    plan = plan_phase(recipe(global_batch, numerics={"wire": "float16"}), 0, 8, DEVICE, network)
    shapes = pretraining_shapes(int8.model, int8.objective.pairs)
    profile = computed_profile(int8, int8.phase[0], 8, 0.5e12)
    link = network.link(int8, "ring", 8, 2.0)
    warning = for_fast_link(int8, shapes, profile, link, "ring", plan.micro_batches, "planned")
    assert bool(warning) == (plan.exposed_s < LEAST_GAIN * plan.step_s)


METHODS = {
    "onebit_adam": {"exchange": {"method": "onebit_adam", "dense": 0.25}, "numerics": {"wire": "float16"}},
    "onebit_lamb": {"exchange": {"method": "onebit_lamb", "dense": 0.25}, "optimizer": {"name": "lamb"}},
    "largest_chunks": {"exchange": {"method": "largest_chunks", "dense": 0.1}},
    "powersgd": {"exchange": {"method": "powersgd", "dense": 0.1}},
    "parameters": {"exchange": {"method": "parameters", "interval": 10}},
    "dreamddp": {"exchange": {"method": "dreamddp", "interval": 10, "full_interval": 100}},
    "diloco": {"exchange": {"method": "diloco", "interval": 10}, "numerics": {"wire": "int8"}},
    **more_rows("rows.PLANNED"),
}


def method_recipe(method: str, **sections) -> Recipe:
    rare = {"micro_batch": 4, "checkpoint_steps": 100, "evaluate_steps": 100, "consistency_steps": 100}
    return recipe(**({"execution": rare} | METHODS[method] | sections))


@pytest.mark.parametrize("method", METHODS)
def test_a_phase_is_the_mean_of_its_stages_and_sends_less_than_float32_gradients(method):
    toy = method_recipe(method)
    plan, dense = plan_phase(toy, 0, 4, DEVICE, HOP), plan_phase(recipe(), 0, 4, DEVICE, HOP)
    assert sum(stage.share for stage in plan.stages) == pytest.approx(1)
    for name in ("sent_bytes", "communication_s", "exposed_s"):
        parts = [stage.share * getattr(stage, name) for stage in plan.stages]
        assert getattr(plan, name) == pytest.approx(sum(parts))
        assert 0 < getattr(plan, name) < getattr(dense, name)
    assert plan.step_s < dense.step_s
    assert plan.days == pytest.approx(100 * plan.step_s / 86400)
    assert plan.efficiency > dense.efficiency
    alone = plan_phase(toy, 0, 1, DEVICE, HOP)
    assert (alone.sent_bytes, alone.communication_s, alone.exposed_s, alone.efficiency) == (0, 0, 0, 1)


def test_bytes_of_stages_are_those_of_their_numbers():
    toy = method_recipe("onebit_adam")
    parameters = derive(toy, toy.phase[0], 4).parameters
    dense, compressed = plan_phase(toy, 0, 4, DEVICE, HOP).stages
    assert (dense.name, dense.share, compressed.name) == ("dense", 0.25, "compressed")
    assert dense.sent_bytes == pytest.approx(1.5 * 2 * parameters, rel=1e-3)
    assert compressed.sent_bytes == pytest.approx(1.5 * parameters * (1 / 8 + 1 / 128), rel=1e-3)


@pytest.mark.parametrize("method", ["parameters", "diloco", *more_rows("rows.EXPOSED")])
def test_averages_after_a_step_are_exposed(method):
    plan = plan_phase(method_recipe(method), 0, 4, DEVICE, HOP)
    assert plan.exposed_s == plan.communication_s == pytest.approx(plan.sent_bytes / 1e9, rel=1e-3)  # whole blocks


def test_all_ranks_wait_for_the_slowest():
    uneven = dataclasses.replace(DEVICE, spread=0.04)
    assert slowest(1) == 0
    # Expected largest of 4 and 16 normal numbers: 1.029 and 1.766 (Harter 1961).
    assert [slowest(4), slowest(16)] == pytest.approx([1.029, 1.766], rel=0.02)
    assert plan_phase(recipe(), 0, 1, uneven, HOP).step_s == plan_phase(recipe(), 0, 1, DEVICE, HOP).step_s
    even, uneven_plan = (plan_phase(recipe(), 0, 4, device, HOP) for device in (DEVICE, uneven))
    assert even.waiting_s == 0
    assert uneven_plan.waiting_s == pytest.approx(0.04 * slowest(4) * even.forward_backward_s)
    assert uneven_plan.step_s == pytest.approx(even.step_s + uneven_plan.waiting_s)


def test_input_is_exposed_where_a_device_is_faster_than_a_core_assembles_rows():
    fast = Device("fast", 1e18, 1.0)
    plan = plan_phase(recipe(), 0, 1, fast, HOP)
    settings = recipe().phase[0]
    rows = plan.micro_batches * recipe().execution.micro_batch
    assert plan.input_s == pytest.approx(rows * (1.65e-5 + 3.9e-8 * settings.sequence_length))
    assert plan.exposed_input_s == pytest.approx(plan.input_s - plan.forward_backward_s)
    assert plan.step_s == pytest.approx(plan.input_s)
    assert plan_phase(recipe(), 0, 1, DEVICE, HOP).exposed_input_s == 0


ALBERT_LARGE = ("model.embedding_size=128", "model.shared_layers=1")


def test_an_albert_sends_its_18_million_numbers_where_a_bert_sends_336_at_the_same_computation():
    network = Network(1.25e8, latency_s=0.0)
    # By size: all numbers in dense sums, none as looked-up rows.
    settings = ("phase.0.global_batch=256", "execution.bucket_bytes=1000000", "execution.micro_batch=32")
    bert, albert = (large(*settings, *more) for more in ((), ALBERT_LARGE))
    plans = [plan_phase(each, 0, 8, DEVICE, network) for each in (bert, albert)]
    numbers = [plan.sent_bytes / (2 * 7 / 8) / 2 for plan in plans]  # of a ring of 8, in float16
    expected = [sum(map(math.prod, pretraining_shapes(each.model, True).values())) for each in (bert, albert)]
    assert numbers == pytest.approx(expected)
    assert numbers == pytest.approx([336.2e6, 17.9e6], rel=1e-2)  # with Google's vocabulary of 30,522
    assert plans[1].forward_backward_s == pytest.approx(plans[0].forward_backward_s, rel=0.05)
    assert plans[1].communication_s < plans[0].communication_s / 18
    assert plans[1].memory_bytes < plans[0].memory_bytes


def test_a_phase_of_upper_layers_sends_and_updates_those_alone():
    staged = recipe(
        model={"num_hidden_layers": 6}, phase=[{"num_hidden_layers": 3}, {"grow": "top", "trained_layers": 3}, {}]
    )
    first, upper, joint = (plan_phase(staged, i, 2, DEVICE, HOP) for i in range(3))
    numbers = [derive(staged, phase, 2).trained for phase in staged.phase]
    assert upper.sent_bytes == pytest.approx(4 * numbers[1])
    assert first.sent_bytes < joint.sent_bytes < first.sent_bytes + 1.05 * 4 * (numbers[2] - numbers[0])
    assert first.forward_backward_s < upper.forward_backward_s < joint.forward_backward_s
    fast = dataclasses.replace(DEVICE, memory_bytes_per_s=1e11)
    times = [plan_phase(staged, i, 2, fast, HOP).update_s for i in range(3)]
    assert times[1] / times[2] == pytest.approx(numbers[1] / numbers[2])


def test_what_growing_phases_cannot_use_is_no_choice():
    staged = recipe(phase=[{"trained_layers": 3}])
    offered = priced_choices(staged, 0, 8, DEVICE, HOP, 0.99, methods.METHODS)
    assert not any("onebit" in each.setting or '"parameters"' in each.setting for each in offered)
    assert any("onebit" in each.setting for each in priced_choices(recipe(), 0, 8, DEVICE, HOP, 0.99, methods.METHODS))
