"""DreamDDP: what no line of promises.py says."""

import dataclasses

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.costs.memory_estimate import memory_bytes
from bert_horovod.costs.planner import Network, plan_phase
from bert_horovod.exchange.local.dreamddp import judged
from tests.costs import test_memory_estimate as memory
from tests.costs.test_planner import DEVICE, HOP, method_recipe
from tests.toys import exchange_of


def test_the_log_says_which_interval_hides_averages():
    assert "hidden; the smallest exchange.interval that hides it is 4" in judged(8, all_s=3.5, step_s=1.0)
    assert "warning: " in judged(2, all_s=3.5, step_s=1.8)
    assert "exchange.interval = 2 is too small to hide it; try 4" in judged(2, all_s=3.5, step_s=1.8)


def test_parts_of_parameters_hide_beside_the_whole_step_and_full_averages_do_not():
    toy = method_recipe("dreamddp")
    parameters = derive(toy, toy.phase[0], 4).parameters
    full_s = 1.5 * 4 * 3 * parameters / 100 / 1e9
    plan = plan_phase(toy, 0, 4, DEVICE, HOP)
    assert plan.exposed_s == pytest.approx(full_s)
    assert plan.communication_s == pytest.approx(1.5 * 4 * parameters / 10 / 1e9 + full_s)
    slow = plan_phase(toy, 0, 4, DEVICE, Network(1e6, share=1.0, latency_s=0.0))
    assert slow.exposed_s == pytest.approx(slow.communication_s - slow.forward_backward_s)


def test_a_part_of_the_parameters_is_kept_on_each_rank():
    recipes = (memory.RECIPE, dataclasses.replace(memory.RECIPE, exchange=exchange_of("dreamddp", interval=8)))
    arguments = memory.SHAPES, memory.ROWS, 2, memory.WITHOUT_KERNELS
    without, kept = (memory_bytes(recipe, *arguments) for recipe in recipes)
    assert kept - without == memory.PARAMETERS // 2
