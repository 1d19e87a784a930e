"""DiLoCo: what it does not share with others, which test_promises.py has."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.collectives.world import World
from bert_horovod.costs.planner import Device, Network, plan_phase
from bert_horovod.measuring.synthetic import LoneRank
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.rank_parts import part_file
from tests.exchange.exchange_jobs import PLAIN, RATE, SHAPES, Tensors, initial, share, trained
from tests.exchange.promises import SGD, STREAMING, outer
from tests.exchange.transcribed import diloco, flat
from tests.toy_runs import assert_same_files, at_step, metrics, newest, train_rank, train_recipe
from tests.toys import toy_recipe, toy_recipe_table

SLOW = pytest.mark.slow
BAD = 7
RULES = {"plain": {"interval": 4}, "streaming": STREAMING}


@pytest.mark.parametrize("rule", [pytest.param("plain", marks=SLOW), "streaming"])
def test_one_rank_alone_makes_outer_steps(rule):
    record = trained(World(), outer(RULES[rule]), BAD - 1)
    for step, [expected] in enumerate(diloco(50, BAD, 1, **RULES[rule])[: BAD - 1]):
        for name, value in expected.items():
            np.testing.assert_allclose(record["states"][step][name], value, rtol=1e-4, atol=1e-5)
    assert (record["bytes"], record["wire_bytes"]) == ([0] * (BAD - 1), 0)


def dyadic_initial() -> dict[str, np.ndarray]:
    return {name: np.round(256 * each) / np.float32(256) for name, each in initial().items()}


def dyadic_share(rank: int, step: int) -> dict[str, np.ndarray]:
    return {name: np.round(256 * each) / np.float32(256) for name, each in share(rank, step).items()}


@pytest.mark.full
def test_an_outer_rate_of_1_without_momentum_is_the_average_bit_for_bit(two_ranks):
    """All numbers are multiples of a power of two, so that no sum is rounded."""
    recipe = outer({"interval": 3, "outer_rate": 1.0, "outer_momentum": 0.0}, optimizer=SGD)
    dyadic = Tensors(dyadic_initial, dyadic_share, 0.25, PLAIN.buckets)
    x = np.tile(flat(dyadic_initial()).astype(np.float64), (2, 1))
    records = [answer.value for answer in two_ranks.run(trained, recipe, 9, tensors=dyadic)]
    for step in range(1, 10):
        for rank in range(2):
            x[rank] -= 0.25 * 2 * flat(dyadic_share(rank, step))
        if step % 3 == 0:
            x[:] = x.mean(0)
        for rank, record in enumerate(records):
            np.testing.assert_array_equal(flat(record["parameters"][step - 1]), x[rank])


@pytest.mark.full
@pytest.mark.parametrize("reduction", [pytest.param("ring", marks=SLOW), "two_step"])
def test_float16_rounds_the_distance_and_nothing_else(two_ranks, reduction):
    sections = {"numerics": {"wire": "float16"}, "execution": {"reduction": reduction}}
    record = two_ranks.run(trained, outer(STREAMING, **sections), 24, bad=BAD)[0].value
    after = diloco(50, BAD, 2, **STREAMING)[23][0]
    exact = flat({name: after[f"common/{name}"] for name in SHAPES})
    moved = np.abs(exact - flat(initial())).max()
    np.testing.assert_allclose(flat(record["common"][-1]), exact, atol=moved / 2**10)
    if reduction == "ring":
        assert record["stated_bytes"][-1] == np.mean(record["bytes"][-12:])


@pytest.mark.full
@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=SLOW), 3])
def test_int8_owes_what_rounding_took(two_ranks, micro_batches):
    """The sgd's gradients here do not depend on the parameters: what was not sent yet is all that is missing."""
    settings = {"interval": 6, "delay": 3, "outer_rate": 1.0, "outer_momentum": 0.0}
    recipe = outer(settings, optimizer=SGD, numerics={"wire": "int8"})
    answers = two_ranks.run(trained, recipe, 9, micro_batches=micro_batches)  # the first sum: steps 1 to 6
    size = len(flat(initial()))
    owed = np.mean([answer.value["own"]["errors"].reshape(-1)[:size] for answer in answers], 0)
    mean = flat(initial()) - RATE * sum(flat(share(rank, step)) for rank in range(2) for step in range(1, 7))
    for answer in answers:
        np.testing.assert_allclose(flat(answer.value["common"][-1]) - owed, mean, rtol=1e-5, atol=1e-5)
    assert np.abs(owed).max() > 1e-4


TOY = {
    "exchange": {"method": "diloco", "interval": 8, "fragments": 2, "delay": 4},
    "phase": {"learning_rate": 0.01},
    "execution": {"micro_batch": 8, "consistency_steps": 5, "checkpoint_steps": 5, "evaluate_steps": 5},
}


def killed(world: World, store: Path, output_dir: Path, recipe: Recipe, step: int) -> None:
    """Train until rank 1 is killed after `step`: a job for two_ranks."""
    kill = at_step(step, lambda _: os.kill(os.getpid(), signal.SIGKILL) if world.rank == 1 else None)
    train_rank(world, store, output_dir, recipe, hooks=(kill,))


@SLOW
@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_a_run_whose_rank_was_killed_goes_on_as_if_it_had_not_been(two_ranks, store, tmp_path, rule):
    execution = TOY["execution"] | {"checkpoint_steps": 2}
    recipe = toy_recipe(**TOY | {"execution": execution}, optimizer={"name": rule}, numerics={"wire": "int8"})
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for step in (7, 13):
        with pytest.raises(AssertionError, match=r"rank \d (ended|raised)"):
            two_ranks.run(killed, store.path, tmp_path / "killed", recipe, step)
    two_ranks.run(train_rank, store.path, tmp_path / "killed", recipe)
    assert_same_files(tmp_path / "whole", tmp_path / "killed", part_file(0), part_file(1))


@SLOW
def test_a_copy_and_its_moments_go_through_phases(store, tmp_path):
    table = toy_recipe_table(**TOY)
    table["phase"] = [table["phase"][0] | {"steps": 6}, table["phase"][0] | {"steps": 6, "sequence_length": 16}]
    recipe = recipe_from_table(table)
    train_recipe(recipe, store, tmp_path / "whole")
    for steps in (6, 12):
        train_recipe(recipe, store, tmp_path / "stopped", max_steps=steps)
        if steps == 6:
            moments = load_file(newest(tmp_path / "stopped") / part_file(0))
            assert any(each.any() for name, each in moments.items() if name.startswith("v/"))
    assert_same_files(tmp_path / "whole", tmp_path / "stopped", part_file(0))


@pytest.fixture(scope="module")
def interrupted(store, tmp_path_factory) -> tuple[Recipe, Path]:
    """A recipe, and its run on one of two ranks: two steps, before the first sum."""
    sections = TOY | {"exchange": {"method": "diloco", "interval": 4, "delay": 3}, "execution": {"micro_batch": 16}}
    recipe = toy_recipe(**sections)
    open_rows(store, recipe, 0, "train", None)  # makes the row index, which takes all ranks otherwise
    return recipe, train_recipe(recipe, store, tmp_path_factory.mktemp("run"), LoneRank(2), max_steps=2)


@pytest.mark.full
def test_the_parameters_that_are_saved_are_the_common_ones(interrupted):
    _, run = interrupted
    common = load_file(newest(run) / "model.safetensors")
    own = load_file(newest(run) / part_file(1))
    assert any((common[name] != own[f"parameters/{name}"]).any() for name in common)
    assert load_file(newest(run) / "training/optimizer.safetensors").keys() == {f"outer_momentum/{n}" for n in common}


def test_a_plan_has_the_bytes_of_the_metrics_and_hides_a_delay(interrupted):
    recipe, run = interrupted
    device, network = Device("toy", 1e12), Network(1e9, share=1.0, latency_s=0.0)
    plan = plan_phase(recipe, 0, 2, device, network)
    assert metrics(run)[-1]["wire_bytes"] == pytest.approx(plan.sent_bytes, rel=1e-3)
    assert [(stage.name, stage.share) for stage in plan.stages] == [("sending", 0.75), ("alone", 0.25)]
    assert plan.exposed_s == 0 < plan.communication_s
    at_once = toy_recipe(**TOY | {"exchange": {"method": "diloco", "interval": 4}})
    exposed = plan_phase(at_once, 0, 2, device, network)
    assert exposed.exposed_s == exposed.communication_s == pytest.approx(plan.communication_s)
