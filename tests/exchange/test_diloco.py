"""DiLoCo: local updates and an outer step, at once and in fragments that are summed while training goes on."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.collectives.world import World
from bert_horovod.costs.planner import Device, Network, plan_phase
from bert_horovod.errors import UserError
from bert_horovod.exchange.local.row_cut import cut
from bert_horovod.measuring.synthetic import LoneRank
from bert_horovod.model.parameters import decays
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.training.hooks.base import Hook, StepEvent
from tests.exchange.local_jobs import (
    RATE,
    SHAPES,
    exchange_recipe,
    initial,
    share,
    trained,
    trained_in_parts,
)
from tests.toy_runs import logged, metrics, newest, train_rank, train_recipe
from tests.toys import toy_recipe, toy_recipe_table

SLOW = pytest.mark.slow
STEPS, BAD = 50, 7
ADAMW = {"beta_2": 0.99, "epsilon": 1e-3, "weight_decay": 0.1, "max_grad_norm": 30.0}
SGD = {"name": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
PLAIN = {"interval": 4}
STREAMING = {"interval": 12, "fragments": 3, "delay": 2, "mixing": 0.25}
ALWAYS_SENDING = {"interval": 12, "fragments": 2, "delay": 6}
RULES = {"plain": PLAIN, "streaming": STREAMING, "always sending": ALWAYS_SENDING}


def diloco_recipe(settings: dict[str, Any], steps: int = STEPS, optimizer: dict = ADAMW, **sections: Any) -> Recipe:
    return exchange_recipe(steps, exchange={"method": "diloco", **settings}, optimizer=optimizer, **sections)


def flat(parameters: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([parameters[name].reshape(-1) for name in SHAPES])


def places(fragments: int) -> list[np.ndarray]:
    """Of each fragment, which of all numbers belong to it: bool."""
    masks = []
    for pieces in cut(SHAPES, fragments):
        marks = {name: np.zeros(shape, bool) for name, shape in SHAPES.items()}
        for name, begin, end in pieces:
            marks[name][begin:end] = True
        masks.append(flat(marks))
    return masks


def transcribed(ranks: int, interval: int, fragments: int = 1, delay: int = 0, mixing: float = 0.5):
    """The published rules: by step, what ranks train [ranks, numbers] and what they have in common, float64."""
    decayed = flat({name: np.full(shape, 0.1 * decays(name)) for name, shape in SHAPES.items()})
    common = flat(initial()).astype(np.float64)
    x = np.tile(common, (ranks, 1))
    m, v, b = np.zeros_like(x), np.zeros_like(x), np.zeros_like(common)
    parts, on_the_way, history, t = places(fragments), {}, [], 0
    for step in range(1, STEPS + 1):
        t += step != BAD
        for rank in range(ranks if step != BAD else 0):
            g = ranks * flat(share(rank, step)).astype(np.float64)
            g /= max(1.0, np.linalg.norm(g) / 30.0)
            m[rank] = 0.9 * m[rank] + 0.1 * g
            v[rank] = 0.99 * v[rank] + 0.01 * g**2
            x[rank] -= RATE * (m[rank] / (1 - 0.9**t) / (np.sqrt(v[rank] / (1 - 0.99**t)) + 1e-3) + decayed * x[rank])
        due = [step] if step % (interval // fragments) == 0 else []
        for begun in due:
            on_the_way[begun] = common - x.mean(0)
        for begun in [begun for begun in on_the_way if step == begun + delay]:
            part = parts[(begun // (interval // fragments) - 1) % fragments]
            d = on_the_way.pop(begun)[part]
            b[part] = 0.9 * b[part] + d
            common[part] -= 0.7 * (d + 0.9 * b[part])
            own = mixing if delay else 0.0
            x[:, part] = own * x[:, part] + (1 - own) * common[part]
        history.append((x.copy(), common.copy()))
    at_once = STEPS % (interval // fragments) == 0 and not delay
    kept = parts[(STEPS // (interval // fragments) - 1) % fragments] & at_once
    common[~kept] = x.mean(0)[~kept]  # at the last step, what is not due becomes the mean
    history[-1] = (np.tile(common, (ranks, 1)), common)
    return history


def assert_transcribed(records: list[dict], expected) -> None:
    for step, (own, common) in enumerate(expected):
        for rank, record in enumerate(records):
            said = f"step {step + 1}, rank {rank}"
            np.testing.assert_allclose(flat(record["parameters"][step]), own[rank], rtol=1e-4, atol=1e-5, err_msg=said)
            np.testing.assert_allclose(flat(record["common"][step]), common, rtol=1e-4, atol=1e-5, err_msg=said)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "micro_batches"),
    [("plain", 1), ("streaming", 3), *(pytest.param(rule, 1, marks=SLOW) for rule in ("streaming", "always sending"))],
)
def test_it_is_the_transcription_of_the_published_rule(two_ranks, rule, micro_batches):
    answers = two_ranks.run(trained, diloco_recipe(RULES[rule]), STEPS, bad=BAD, micro_batches=micro_batches)
    records = [answer.value for answer in answers]
    assert_transcribed(records, transcribed(2, **RULES[rule]))
    mine, others = records
    for step in range(STEPS):
        np.testing.assert_array_equal(flat(mine["common"][step]), flat(others["common"][step]))
    equal = [i + 1 for i in range(STEPS) if (flat(mine["parameters"][i]) == flat(others["parameters"][i])).all()]
    assert equal == ([*range(4, STEPS, 4), STEPS] if rule == "plain" else [STEPS])
    assert mine["traces"] == 1
    assert not np.isfinite(mine["norms"][BAD - 1])
    assert mine["stated_bytes"][-1] == pytest.approx(np.mean(mine["bytes"][12:24]))
    assert mine["wire_bytes"] == mine["stated_bytes"][-1]  # 2 (n - 1) / n of it


@pytest.mark.parametrize("rule", [pytest.param("plain", marks=SLOW), "streaming"])
def test_one_rank_alone_makes_outer_steps(rule):
    record = trained(World(), diloco_recipe(RULES[rule]), BAD - 1)
    assert_transcribed([record], transcribed(1, **RULES[rule])[: BAD - 1])
    assert (record["bytes"], record["wire_bytes"]) == ([0] * (BAD - 1), 0)


def dyadic_initial() -> dict[str, np.ndarray]:
    return {name: np.round(256 * each) / np.float32(256) for name, each in initial().items()}


def dyadic_share(rank: int, step: int) -> dict[str, np.ndarray]:
    return {name: np.round(256 * each) / np.float32(256) for name, each in share(rank, step).items()}


@pytest.mark.full
def test_an_outer_rate_of_1_without_momentum_is_the_average_bit_for_bit(two_ranks):
    """All numbers are multiples of a power of two, so that no sum is rounded."""
    recipe = diloco_recipe({"interval": 3, "outer_rate": 1.0, "outer_momentum": 0.0}, optimizer=SGD)
    numbers = {"first": dyadic_initial, "gradients": dyadic_share, "rate": 0.25}
    x = np.tile(flat(dyadic_initial()).astype(np.float64), (2, 1))
    records = [answer.value for answer in two_ranks.run(trained, recipe, 9, **numbers)]
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
    record = two_ranks.run(trained, diloco_recipe(STREAMING, **sections), 24, bad=BAD)[0].value
    _, exact = transcribed(2, **STREAMING)[23]
    moved = np.abs(exact - flat(initial())).max()
    np.testing.assert_allclose(flat(record["common"][-1]), exact, atol=moved / 2**10)
    if reduction == "ring":
        assert record["stated_bytes"][-1] == np.mean(record["bytes"][-12:])


@pytest.mark.full
@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=SLOW), 3])
def test_int8_owes_what_rounding_took(two_ranks, micro_batches):
    """The sgd's gradients here do not depend on the parameters: what was not sent yet is all that is missing."""
    settings = {"interval": 6, "delay": 3, "mixing": 0.0, "outer_rate": 1.0, "outer_momentum": 0.0}
    recipe = diloco_recipe(settings, optimizer=SGD, numerics={"wire": "int8"})
    answers = two_ranks.run(trained, recipe, 9, micro_batches=micro_batches)  # the first sum: steps 1 to 6
    size = len(flat(initial()))
    owed = np.mean([answer.value["own"]["errors"].reshape(-1)[:size] for answer in answers], 0)
    mean = flat(initial()) - RATE * sum(flat(share(rank, step)) for rank in range(2) for step in range(1, 7))
    for answer in answers:
        np.testing.assert_allclose(flat(answer.value["common"][-1]) - owed, mean, rtol=1e-5, atol=1e-5)
    assert np.abs(owed).max() > 1e-4


@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "stop", "wire"), [pytest.param("plain", 6, "float32", marks=SLOW), ("streaming", 9, "int8")]
)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_an_interval_or_a_delay(two_ranks, rule, stop, wire):
    recipe = diloco_recipe(RULES[rule], numerics={"wire": wire})
    for answer in two_ranks.run(trained_in_parts, recipe, 20, stop=stop):
        whole, parts = answer.value
        for kind in ("parameters", "common"):
            np.testing.assert_array_equal(flat(whole[kind][-1]), flat(parts[kind][-1]))
        for kind in ("own", "slots", "progress"):
            np.testing.assert_equal(whole[kind], parts[kind])


TOY = {
    "exchange": {"method": "diloco", "interval": 8, "fragments": 2, "delay": 4},
    "phase": {"learning_rate": 0.01},
    "execution": {"micro_batch": 8, "consistency_steps": 5, "checkpoint_steps": 5, "evaluate_steps": 5},
}
FILES = ("model.safetensors", "training/optimizer.safetensors")


def assert_same_files(whole: Path, stopped: Path, ranks: int) -> None:
    for file in (*FILES, *(f"training/rank-{rank:05d}.safetensors" for rank in range(ranks))):
        one, other = (load_file(newest(run) / file) for run in (whole, stopped))
        np.testing.assert_equal(one, other, file)


@pytest.mark.full
@SLOW
@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_a_toy_learns_and_resumes_where_its_ranks_differ(two_ranks, store, tmp_path, wire):
    recipe = toy_recipe(**TOY, numerics={"wire": wire})
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for steps in (7, 20):  # 7: a sum has sent 3 of 4 rows
        two_ranks.run(train_rank, store.path, tmp_path / "stopped", recipe, max_steps=steps)
    assert_same_files(tmp_path / "whole", tmp_path / "stopped", ranks=2)
    held_out = [
        [line["held_out_mlm_loss"] for line in logged(tmp_path / run) if "held_out_mlm_loss" in line]
        for run in ("whole", "stopped")
    ]
    assert held_out[0][-1] == held_out[1][-1]
    lines = metrics(tmp_path / "whole")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]]) - 0.03


def killed(world: World, store: Path, output_dir: Path, recipe: Recipe, step: int) -> None:
    """Train until rank 1 is killed after `step`: a job for two_ranks."""

    class Kill(Hook):
        def step(self, event: StepEvent) -> None:
            if event.step == step and world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    train_rank(world, store, output_dir, recipe, hooks=(Kill,))


@pytest.mark.full
@SLOW
def test_a_run_whose_rank_was_killed_goes_on_as_if_it_had_not_been(two_ranks, store, tmp_path):
    recipe = toy_recipe(**TOY | {"execution": TOY["execution"] | {"checkpoint_steps": 2}}, numerics={"wire": "int8"})
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for step in (7, 13):
        with pytest.raises(AssertionError, match=r"rank \d (ended|raised)"):
            two_ranks.run(killed, store.path, tmp_path / "killed", recipe, step)
    two_ranks.run(train_rank, store.path, tmp_path / "killed", recipe)
    assert_same_files(tmp_path / "whole", tmp_path / "killed", ranks=2)


def kept_when_resumed(world: World, store: Path, output_dir: Path, recipe: Recipe, step: int) -> dict[str, np.ndarray]:
    """Resume the run; what this rank keeps when `step` begins: a job for two_ranks."""
    kept: dict[str, np.ndarray] = {}

    class Look(Hook):
        def begin(self, number: int) -> None:
            if number == step:
                kept.update({name: each.numpy() for name, each in self.run.state.per_rank.items()})

    train_rank(world, store, output_dir, recipe, hooks=(Look,), max_steps=step)
    return kept


@pytest.mark.full
@SLOW
def test_another_number_of_ranks_begins_with_the_means(two_ranks, store, tmp_path):
    recipe = toy_recipe(**TOY, numerics={"wire": "int8"})
    two_ranks.run(train_rank, store.path, tmp_path / "run", recipe, max_steps=7)
    parts = [load_file(newest(tmp_path / "run") / f"training/rank-0000{rank}.safetensors") for rank in range(2)]
    assert any((parts[0][name] != parts[1][name]).any() for name in parts[0] if name.startswith("m/"))
    kept = kept_when_resumed(World(), store.path, tmp_path / "run", recipe, 8)
    assert kept.keys() | {"errors"} == parts[0].keys()
    for name, each in kept.items():
        np.testing.assert_array_equal(each, (parts[0][name] + parts[1][name]) / 2, err_msg=name)
    [alone] = [load_file(newest(tmp_path / "run") / "training/rank-00000.safetensors")]
    for answer in two_ranks.run(kept_when_resumed, store.path, tmp_path / "run", recipe, 9):
        for name, each in alone.items():
            np.testing.assert_array_equal(answer.value[name], each, err_msg=name)


@SLOW
def test_a_copy_and_its_moments_go_through_phases(store, tmp_path):
    table = toy_recipe_table(**TOY)
    table["phase"] = [table["phase"][0] | {"steps": 6}, table["phase"][0] | {"steps": 6, "sequence_length": 16}]
    recipe = recipe_from_table(table)
    train_recipe(recipe, store, tmp_path / "whole")
    for steps in (6, 12):
        train_recipe(recipe, store, tmp_path / "stopped", max_steps=steps)
        if steps == 6:
            moments = load_file(newest(tmp_path / "stopped") / "training/rank-00000.safetensors")
            assert any(each.any() for name, each in moments.items() if name.startswith("v/"))
    assert_same_files(tmp_path / "whole", tmp_path / "stopped", ranks=1)


@pytest.fixture(scope="module")
def interrupted(store, tmp_path_factory) -> tuple[Recipe, Path]:
    """A recipe, and its run on one of two ranks: two steps, before the first sum."""
    sections = TOY | {"exchange": {"method": "diloco", "interval": 4, "delay": 3}, "execution": {"micro_batch": 16}}
    recipe = toy_recipe(**sections)
    open_rows(store, recipe, 0, "train", None)  # makes the row index, which takes all ranks otherwise
    return recipe, train_recipe(recipe, store, tmp_path_factory.mktemp("run"), LoneRank(2), max_steps=2)


def test_the_parameters_that_are_saved_are_the_common_ones(interrupted):
    _, run = interrupted
    common = load_file(newest(run) / "model.safetensors")
    own = load_file(newest(run) / "training/rank-00001.safetensors")
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, r"exchange\.interval = 0: expected at least 1"),
        ({"outer_rate": 0.0}, r"exchange\.outer_rate = 0\.0: expected "),
        ({"outer_momentum": 1.0}, r"exchange\.outer_momentum = 1\.0: expected "),
        ({"fragments": 0}, r"exchange\.fragments = 0: expected at least 1"),
        ({"delay": -1}, r"exchange\.delay = -1: expected at least 0"),
        ({"mixing": 1.5}, r"exchange\.mixing = 1\.5: expected "),
        ({"fragments": 7}, r"exchange\.fragments = 7: .*exchange\.interval = 30 steps; expected a divisor of it"),
        ({"fragments": 6, "delay": 6}, r"exchange\.delay = 6: .* 5 steps later .*expected at most that"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(settings, message):
    with pytest.raises(UserError, match=message):
        toy_recipe(exchange={"method": "diloco"} | settings)
