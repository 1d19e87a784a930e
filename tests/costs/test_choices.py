"""What plans advise, against plans themselves and by hand."""

import dataclasses

import pytest

from bert_horovod.costs.choices import (
    alternatives,
    int8_pays_below,
    knee,
    largest_micro_batches,
    priced_choices,
    worth_until,
)
from bert_horovod.costs.derived import derive
from bert_horovod.costs.gpus import compute_capability
from bert_horovod.costs.planner import Device, Network, PhasePlan, plan_phase
from bert_horovod.exchange.methods import METHODS
from bert_horovod.recipe.checking import check_exchange
from tests.costs.test_planner import DEVICE, HOP, method_recipe, recipe
from tests.toys import exchange_of


def plans(*rows_per_s: float) -> list[PhasePlan]:
    """Of 1, 2, 4, ... ranks that reach so many rows a second."""
    plan = plan_phase(recipe(), 0, 1, DEVICE, HOP)
    return [
        dataclasses.replace(plan, world_size=1 << i, rows_per_s=rate, efficiency=rate / rows_per_s[0] / (1 << i))
        for i, rate in enumerate(rows_per_s)
    ]


def test_the_knee_is_where_efficiency_times_speed_up_is_largest():
    published_minutes = {8: 18.44, 64: 2.94, 1024: 0.421, 4096: 0.206}  # MLPerf Training v2.0, NVIDIA A100
    growing = [
        dataclasses.replace(plans(1.0)[0], world_size=ranks, efficiency=18.44 * 8 / (minutes * ranks))
        for ranks, minutes in published_minutes.items()
    ]
    assert [round(plan.efficiency, 3) for plan in growing] == [1, 0.784, 0.342, 0.175]
    assert knee(growing) == 4096
    assert knee(plans(10, 19, 30, 40, 45)) == 4  # 0.75^2 * 4 = 2.25, and 0.5^2 * 8 = 2


def test_ranks_are_worth_it_while_each_added_one_brings_half_of_a_lone_ones_rows():
    assert worth_until(plans(10, 19, 30, 49)) == 4  # 2, 4: +9, +5.5 a rank; 8: +4.75
    assert worth_until(plans(10, 19, 30, 51)) == 8
    assert worth_until(plans(10, 14)) == 1
    assert worth_until(plans(10)) == 1
    assert worth_until(plans(10, 19, 30, 49)[3:]) == 8  # 39 more for 7 more
    assert worth_until(plans(10, 12, 14, 16)[3:]) == 1


def with_memory(allocatable_bytes: float, name: str = "V100") -> Device:
    return dataclasses.replace(
        DEVICE, allocatable_bytes=allocatable_bytes, capability=compute_capability(f"{name} 80GB")
    )


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    toy = recipe(4096, model={"num_hidden_layers": 3})
    limit = 3 * 2**30
    largest = largest_micro_batches(toy, 0, 2, with_memory(limit))
    assert largest["none"] < largest["attention"] < largest["layer"]
    for recompute, rows in largest.items():
        sizes = [
            derive(
                dataclasses.replace(
                    toy, execution=dataclasses.replace(toy.execution, micro_batch=each, recompute=recompute)
                ),
                toy.phase[0],
                2,
                capability=DEVICE.capability,
            ).memory_bytes
            for each in (rows, rows + 1)
        ]
        assert sizes[0] <= limit < sizes[1]


def test_a_micro_batch_is_no_more_than_a_ranks_rows_and_none_may_fit():
    assert set(largest_micro_batches(recipe(), 0, 3, with_memory(1e15)).values()) == {22}
    assert set(largest_micro_batches(recipe(), 0, 3, with_memory(1e6)).values()) == {0}
    assert largest_micro_batches(recipe(), 0, 3, DEVICE) is None


def test_more_rows_fit_where_kernels_keep_no_probabilities():
    base = recipe(
        100_000, model={"num_hidden_layers": 12}, phase=[{"sequence_length": 512}], numerics={"precision": "float16"}
    )
    old, new = (largest_micro_batches(base, 0, 1, with_memory(3e10, name)) for name in ("V100", "A100"))
    assert new["none"] > 1.5 * old["none"]
    assert new["none"] == new["attention"]


def test_choices_begin_with_the_recipe_and_hold_the_least_batch_that_reaches_the_efficiency():
    slow = Network(2e8, latency_s=0.0)
    offered = priced_choices(recipe(optimizer={"name": "lamb"}), 0, 8, DEVICE, slow, 0.8, METHODS)
    assert [each.setting.partition(" = ")[0] for each in offered] == [
        *("the recipe as it is", "numerics.wire", "numerics.wire", "phase.0.global_batch", "exchange.method"),
        *("exchange.method", "exchange.method", "exchange.method", "model.embedding_size"),
    ]
    alone, float16, int8, larger, low_rank, one_bit, averages, outer_steps, shared = offered
    assert shared.efficiency > float16.efficiency
    assert alone.efficiency < float16.efficiency < int8.efficiency < one_bit.efficiency
    assert int8.efficiency < low_rank.efficiency
    assert all(each.price for each in offered[1:])
    times = int(larger.setting.split()[-1]) // 64
    assert larger.efficiency >= 0.8 > plan_phase(recipe(32 * times), 0, 8, DEVICE, slow).efficiency
    plan = plan_phase(recipe(64 * times, optimizer={"name": "lamb"}), 0, 8, DEVICE, slow)
    assert larger.days == pytest.approx(plan.days / times)
    assert larger.efficiency == plan.efficiency
    interval = int(averages.setting.split()[-1])
    toy = recipe(optimizer={"name": "lamb"})
    local = [
        dataclasses.replace(toy, exchange=exchange_of("parameters", interval=each))
        for each in (interval, interval // 2)
    ]
    reached = [plan_phase(each, 0, 8, DEVICE, slow).efficiency for each in local]
    assert reached[0] == averages.efficiency
    assert reached[0] >= 0.8 > reached[1]
    assert outer_steps.setting == (
        'exchange.method = "diloco", exchange.interval = 4, exchange.fragments = 4, exchange.delay = 1'
    )
    diloco = dataclasses.replace(toy, exchange=exchange_of("diloco", interval=4, fragments=4, delay=1))
    assert outer_steps.efficiency == plan_phase(diloco, 0, 8, DEVICE, slow).efficiency >= 0.8


def test_what_the_recipe_has_is_not_offered():
    offered = priced_choices(recipe(numerics={"wire": "float16"}), 0, 8, DEVICE, HOP, 0.5, METHODS)
    assert 'numerics.wire = "float16"' not in [each.setting for each in offered]
    own = priced_choices(method_recipe("parameters"), 0, 8, DEVICE, HOP, 0.5, METHODS)
    assert [each.setting.partition(" ")[0] for each in own] == ["the", "phase.0.global_batch", "model.embedding_size"]
    albert = priced_choices(recipe(model={"shared_layers": 1}), 0, 8, DEVICE, HOP, 0.5, METHODS)
    assert not any("shared_layers" in each.setting for each in albert)


def test_alternatives_are_sound_recipes_of_each_way_to_send_less():
    recipes = alternatives(recipe(optimizer={"name": "lamb"}, phase=[{"warmup": 0.3}]), METHODS)
    assert list(recipes) == [
        'numerics.wire = "float16"',
        'numerics.wire = "int8"',
        'exchange.method = "powersgd"',
        'exchange.method = "onebit_lamb"',
    ]
    for each in recipes.values():
        check_exchange(each)
    assert list(alternatives(recipe(optimizer={"name": "sgd"}), METHODS)) == list(recipes)[:3]
    own = method_recipe("parameters")
    assert alternatives(own, METHODS)['exchange.method = "parameters"'] == own


@pytest.mark.parametrize(("global_batch", "latency_s"), [(64, 0.0), (64, 1e-3), (1024, 0.0)])
def test_int8_pays_below_the_rate_at_which_float16_exposes_its_share_of_a_step(global_batch, latency_s):
    rate = int8_pays_below(recipe(global_batch), 0, 8, DEVICE, dataclasses.replace(HOP, latency_s=latency_s), METHODS)
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
    few, many = (int8_pays_below(recipe(rows), 0, 8, DEVICE, HOP, METHODS) for rows in (64, 1024))
    assert many < few
    assert int8_pays_below(recipe(), 0, 1, DEVICE, HOP, METHODS) is None
