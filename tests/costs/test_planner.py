"""Plans against arithmetic by hand, and against tables that others published."""

import dataclasses
import itertools
import math
import subprocess
import sys

import pytest

from bert_horovod.costs import buckets
from bert_horovod.costs.backward_profile import computed_profile
from bert_horovod.costs.derived import derive
from bert_horovod.costs.link import ring
from bert_horovod.costs.planner import (
    Device,
    Network,
    accumulation_bytes,
    alternatives,
    int8_pays_below,
    plan_phase,
    update_bytes,
)
from bert_horovod.errors import UserError
from bert_horovod.model.parameters import pretraining_shapes
from bert_horovod.recipe.checking_exchange import check_exchange
from bert_horovod.recipe.loading import load_recipe, recipe_from_table
from bert_horovod.recipe.sections import Recipe
from tests.horovod_runs import PROJECT

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
    found = plan_phase(toy, 0, 1, DEVICE, HOP)
    flops = derive(toy, toy.phase[0], 1).flops_per_row
    assert found.micro_batches == 16
    assert found.step_s == found.forward_backward_s == pytest.approx(64 * flops / 0.5e12, rel=1e-9)
    assert (found.communication_s, found.exposed_s, found.buckets, found.efficiency) == (0, 0, 0, 1)
    assert found.rows_per_s == pytest.approx(0.5e12 / flops)
    assert found.tokens_per_s == pytest.approx(128 * found.rows_per_s)
    assert found.days == pytest.approx(100 * found.step_s / 86400)
    assert found.memory_bytes == derive(toy, toy.phase[0], 1, gpu=True).memory_bytes


def test_rows_that_fill_no_micro_batch_take_its_time_all_the_same():
    found = plan_phase(recipe(65), 0, 2, DEVICE, HOP)
    assert found.micro_batches == 9
    assert found.forward_backward_s == pytest.approx(9 / 8 * plan_phase(recipe(), 0, 2, DEVICE, HOP).forward_backward_s)


def test_accumulation_and_update_take_the_time_of_their_bytes():
    toy = recipe()
    parameters = derive(toy, toy.phase[0], 1).parameters
    found = plan_phase(toy, 0, 1, dataclasses.replace(DEVICE, memory_bytes_per_s=1e11), HOP)
    assert found.accumulation_s == pytest.approx(16 * 12 * parameters / 1e11)  # float32: 4 + 4 read, 4 written
    # norm 4; parameters, gradients and two slots read twice; slots and parameters written
    assert found.update_s == pytest.approx((4 + 2 * 16 + 8 + 4) * parameters / 1e11)
    assert found.step_s == pytest.approx(found.forward_backward_s + found.accumulation_s + found.update_s)


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
    assert update_bytes(toy, 10, micro_batches, world_size) == 10 * expected


def test_one_micro_batch_accumulates_nothing():
    assert accumulation_bytes(recipe(), 10, 1) == 0
    assert accumulation_bytes(recipe(numerics={"precision": "float16"}), 10, 3) == 3 * 10 * 10


@pytest.mark.parametrize(("wire", "width"), [("float32", 4), ("float16", 2), ("int8", 1 + 2 / 256)])
def test_one_bucket_is_sent_after_backward(wire, width):
    toy = recipe(numerics={"wire": wire}, execution={"micro_batch": 4, "bucket_bytes": 1 << 40})
    found = plan_phase(toy, 0, 4, DEVICE, Network(1e9, share=0.5, latency_s=0.001))
    payload = width * derive(toy, toy.phase[0], 4).parameters
    assert found.buckets == 1
    hops = 4 if wire == "int8" else 6  # in two steps; of a ring
    assert found.exposed_s == pytest.approx(found.communication_s)
    assert found.communication_s == pytest.approx(hops * 0.001 + 2 * 3 / 4 * payload / 0.5e9)


def test_more_ranks_are_faster_and_less_efficient_and_micro_batches_help():
    found = [plan_phase(recipe(), 0, n, DEVICE, HOP) for n in (1, 2, 4, 8, 16)]
    for fewer, more in itertools.pairwise(found):
        assert more.efficiency < fewer.efficiency <= 1
        assert 0 < more.exposed_s < more.communication_s
    assert plan_phase(recipe(1024), 0, 16, DEVICE, HOP).efficiency > found[-1].efficiency


def test_a_link_without_end_costs_nothing_and_no_link_everything():
    free = plan_phase(recipe(), 0, 8, DEVICE, Network(1e18, latency_s=0.0))
    assert free.efficiency == pytest.approx(1, abs=1e-6)
    assert plan_phase(recipe(), 0, 8, DEVICE, Network(1e3)).efficiency < 1e-4


def test_the_plan_of_merged_gradients_ends_as_early_as_that_of_all_parameters():
    toy = recipe(16, model={"num_hidden_layers": 3})
    found = plan_phase(toy, 0, 4, DEVICE, HOP)
    profile = computed_profile(toy, 128, 4, 0.5e12)
    shapes, link = pretraining_shapes(toy.model, toy.objective.pairs), ring(4, 1e9, 0.0)
    plan = buckets.by_profile(shapes, 4, profile, link)
    expected = buckets.seconds(plan, shapes, 4, profile, link)
    assert profile.end_s + found.exposed_s == pytest.approx(expected, rel=2 * buckets.SLACK)


METHODS = {
    "onebit_adam": {"exchange": {"method": "onebit_adam", "dense": 0.25}, "numerics": {"wire": "float16"}},
    "onebit_lamb": {"exchange": {"method": "onebit_lamb", "dense": 0.25}, "optimizer": {"name": "lamb"}},
    "zero_one_adam": {"exchange": {"method": "zero_one_adam", "dense": 0.1, "interval": 4}},
    "largest_chunks": {"exchange": {"method": "largest_chunks", "dense": 0.1}},
    "parameters": {"exchange": {"method": "parameters", "interval": 10}},
    "mt_dao": {"exchange": {"method": "mt_dao", "interval": 10, "momentum_interval": 20}},
    "dreamddp": {"exchange": {"method": "dreamddp", "interval": 10, "full_interval": 100}},
}


def method_recipe(method: str, **sections) -> Recipe:
    rare = {"micro_batch": 4, "checkpoint_steps": 100, "evaluate_steps": 100, "consistency_steps": 100}
    return recipe(**({"execution": rare} | METHODS[method] | sections))


@pytest.mark.parametrize("method", METHODS)
def test_a_phase_is_the_mean_of_its_stages_and_sends_less_than_float32_gradients(method):
    toy = method_recipe(method)
    found, dense = plan_phase(toy, 0, 4, DEVICE, HOP), plan_phase(recipe(), 0, 4, DEVICE, HOP)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)
    for name in ("sent_bytes", "communication_s", "exposed_s"):
        parts = [stage.share * getattr(stage, name) for stage in found.stages]
        assert getattr(found, name) == pytest.approx(sum(parts))
        assert 0 < getattr(found, name) < getattr(dense, name)
    assert found.step_s < dense.step_s
    assert found.days == pytest.approx(100 * found.step_s / 86400)
    assert found.efficiency > dense.efficiency
    alone = plan_phase(toy, 0, 1, DEVICE, HOP)
    assert (alone.sent_bytes, alone.communication_s, alone.exposed_s, alone.efficiency) == (0, 0, 0, 1)


def test_bytes_of_stages_are_those_of_their_numbers():
    toy = method_recipe("onebit_adam")
    parameters = derive(toy, toy.phase[0], 4).parameters
    dense, compressed = plan_phase(toy, 0, 4, DEVICE, HOP).stages
    assert (dense.name, dense.share, compressed.name) == ("dense", 0.25, "compressed")
    assert dense.sent_bytes == pytest.approx(1.5 * 2 * parameters, rel=1e-3)
    assert compressed.sent_bytes == pytest.approx(1.5 * parameters * (1 / 8 + 1 / 128), rel=1e-3)


@pytest.mark.parametrize("method", ["parameters", "mt_dao"])
def test_averages_after_a_step_are_exposed(method):
    found = plan_phase(method_recipe(method), 0, 4, DEVICE, HOP)
    assert found.exposed_s == found.communication_s == pytest.approx(found.sent_bytes / 1e9)


def test_parts_of_parameters_hide_beside_the_whole_step_and_full_averages_do_not():
    toy = method_recipe("dreamddp")
    parameters = derive(toy, toy.phase[0], 4).parameters
    full_s = 1.5 * 4 * 3 * parameters / 100 / 1e9
    found = plan_phase(toy, 0, 4, DEVICE, HOP)
    assert found.exposed_s == pytest.approx(full_s)
    assert found.communication_s == pytest.approx(1.5 * 4 * parameters / 10 / 1e9 + full_s)
    slow = plan_phase(toy, 0, 4, DEVICE, Network(1e6, share=1.0, latency_s=0.0))
    assert slow.exposed_s == pytest.approx(slow.communication_s - slow.forward_backward_s)


def test_alternatives_are_sound_recipes_of_each_way_to_send_less():
    found = alternatives(recipe(optimizer={"name": "lamb"}, phase=[{"warmup": 0.3}]))
    assert list(found) == [
        'numerics.wire = "float16"',
        'numerics.wire = "int8"',
        'exchange.method = "onebit_lamb"',
    ]
    for each in found.values():
        check_exchange(each)
    assert list(alternatives(recipe(optimizer={"name": "sgd"}))) == list(found)[:2]
    own = method_recipe("parameters")
    assert alternatives(own)['exchange.method = "parameters"'] == own


@pytest.mark.parametrize(("global_batch", "latency_s"), [(64, 0.0), (64, 1e-3), (1024, 0.0)])
def test_int8_pays_below_the_rate_at_which_float16_exposes_its_share_of_a_step(global_batch, latency_s):
    rate = int8_pays_below(recipe(global_batch), 0, 8, DEVICE, dataclasses.replace(HOP, latency_s=latency_s))
    pays = []
    for times in (0.9, 1.1):
        link = Network(times * rate, HOP.share, latency_s)
        wide, narrow = (
            plan_phase(recipe(global_batch, numerics={"wire": wire}), 0, 8, DEVICE, link)
            for wire in ("float16", "int8")
        )
        pays.append(wide.exposed_s > 0.05 * wide.step_s and narrow.step_s < 0.98 * wide.step_s)
    assert pays == [True, False]


def test_int8_pays_on_slower_links_the_longer_steps_compute_and_never_on_one_rank():
    few, many = (int8_pays_below(recipe(rows), 0, 8, DEVICE, HOP) for rows in (64, 1024))
    assert many < few
    assert int8_pays_below(recipe(), 0, 1, DEVICE, HOP) is None


def test_ranks_that_cannot_share_the_batch_are_an_error():
    with pytest.raises(UserError, match="there are 65 ranks and each needs at least one row"):
        plan_phase(recipe(), 0, 65, DEVICE, HOP)


def calibrated(toy: Recipe, world_size: int, rows_per_s: float, network: Network) -> Device:
    """The device on which so many ranks reach so many rows a second."""
    low, high = 1e11, 1e15
    for _ in range(40):
        device = Device("calibrated", math.sqrt(low * high), 1.0)
        fast = plan_phase(toy, 0, world_size, device, network).rows_per_s > rows_per_s
        low, high = (low, device.flops_per_s) if fast else (device.flops_per_s, high)
    return device


@pytest.mark.parametrize(("ranks", "published"), [(8, 30.0), (16, 54.3), (32, 105.0)])
def test_published_rows_a_second_on_slow_ethernet(ranks, published):
    """HKBU (ddl-benchmarks): BERT-large, 8 rows of 64 a GPU, float32, 10 Gb/s; calibrated with 49 rows/s on one GPU."""

    def on(ranks: int) -> Recipe:
        return large(
            "numerics.precision=float32",
            "numerics.wire=float32",
            "execution.micro_batch=8",
            "phase.0.sequence_length=64",
            f"phase.0.global_batch={8 * ranks}",
        )

    network = Network(10e9 / 8)
    found = plan_phase(on(ranks), 0, ranks, calibrated(on(1), 1, 49.0, network), network)
    assert found.rows_per_s == pytest.approx(published, rel=0.04)


def test_published_rows_a_second_of_four_fast_nodes():
    """NVIDIA (DeepLearningExamples): BERT-large, 61,440 rows of 128; calibrated with 3,528.5 rows/s of one DGX-2H."""
    toy = large("execution.micro_batch=60", "phase.0.global_batch=61440")
    device = calibrated(toy, 16, 3528.5, Network(150e9, latency_s=5e-6))
    found = plan_phase(toy, 0, 64, device, Network(100e9, latency_s=5e-6))
    assert found.rows_per_s == pytest.approx(13370, rel=0.06)


def test_costs_and_the_command_need_no_tensorflow():
    code = """
import importlib, pkgutil, sys
from bert_horovod import costs
names = [f"bert_horovod.costs.{module.name}" for module in pkgutil.iter_modules(costs.__path__)]
assert "bert_horovod.costs.planner" in names
for name in [*names, "bert_horovod.commands.plan"]:
    importlib.import_module(name)
    assert "tensorflow" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
