"""PowerSGD: on real ranks sums, factors and what is owed are those of a transcription to NumPy."""

import json
import math
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import sent_bytes, sent_shapes
from bert_horovod.errors import UserError
from bert_horovod.exchange.compressed.payload_parts import LEFT, RIGHT
from bert_horovod.exchange.owed import Layout, shares, total
from bert_horovod.model.parameters import WORD_EMBEDDINGS, Shapes, initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.rank_parts import part_file
from tests.exchange.powersgd_jobs import (
    RATE,
    SHAPES,
    initial,
    powersgd_recipe,
    share,
    trained,
    trained_in_parts,
)
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment, horovodrun, kill_tree, run_script
from tests.toy_runs import metrics, newest, pretrain_arguments, train_rank
from tests.toys import toy_recipe

STEPS, BAD, CHUNK = 50, 9, 16
NARROW = {
    "float16": ("float16", {}),
    "int8": ("int8", {}),
    "int8 words": ("float16", {"words": "int8", "dense_wire": "int8"}),
}


def started(recipe: Recipe, slot: str) -> dict[str, np.ndarray]:
    """The random factors at the phase's beginning, by parameter, float64."""
    ranks = {name: recipe.exchange.rank_of(name, shape) for name, shape in SHAPES.items()}
    shapes = {f"{slot}/{name}": (SHAPES[name][slot == RIGHT], rank) for name, rank in ranks.items() if rank}
    values = initial_values(shapes, 1.0, recipe.data.seed)
    return {name.removeprefix(f"{slot}/"): value.astype(np.float64) for name, value in values.items()}


def chunked(matrix: np.ndarray) -> np.ndarray:
    return np.pad(matrix.reshape(-1), (0, -matrix.size % CHUNK)).reshape(-1, CHUNK)


def transcribed(recipe: Recipe, ranks: int, steps: int, bad: int = 0) -> tuple[list[dict], list[dict], dict]:
    """Parameters by step; what is owed by rank, and the factors, in the end; all in float64."""
    settings = recipe.exchange
    x = {name: value.astype(np.float64) for name, value in initial().items()}
    owed = [{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(ranks)]
    left, right = started(recipe, LEFT), started(recipe, RIGHT)
    count, sent = settings.chunks(70 * 24)
    chosen, history = np.arange(sent), []
    for step in range(1, steps + 1):
        m = [{name: owed[rank][name] + share(rank, step)[name] for name in SHAPES} for rank in range(ranks)]
        after = step - settings.dense_steps(recipe.phase[0])
        if step != bad:
            norms = np.zeros(count)
            for name in SHAPES:
                if after <= 0 or (name not in left and name != WORD_EMBEDDINGS):
                    g = sum(each[name] for each in m)
                    if name == WORD_EMBEDDINGS:
                        norms = np.abs(chunked(g)).sum(1)
                elif name not in left:
                    g, own = np.zeros((count, CHUNK)), []
                    for rank in range(ranks):
                        rest = chunked(m[rank][name])
                        g[chosen] += rest[chosen]
                        rest[chosen] = 0
                        norms = norms + np.abs(rest + chunked(share(rank, step)[name].astype(np.float64))).sum(1)
                        owed[rank][name] = rest.reshape(-1)[: 70 * 24].reshape(70, 24)
                    g = g.reshape(-1)[: 70 * 24].reshape(70, 24)
                elif after % 2:
                    basis = np.linalg.qr(left[name])[0]
                    own = [each[name].T @ basis for each in m]
                    for rank in range(ranks):
                        owed[rank][name] = m[rank][name] - basis @ own[rank].T
                    right[name] = sum(own)
                    g = basis @ right[name].T
                else:
                    basis = np.linalg.qr(right[name])[0]
                    own = [each[name] @ basis for each in m]
                    for rank in range(ranks):
                        owed[rank][name] = m[rank][name] - own[rank] @ basis.T
                    left[name] = sum(own)
                    g = left[name] @ basis.T
                x[name] = x[name] - RATE * g
            chosen = np.argsort(-norms, kind="stable")[:sent]
        history.append(dict(x))
    return history, owed, {LEFT: left, RIGHT: right}


def assert_transcribed(records: list[list[dict]], recipe: Recipe, bad: int = 0) -> None:
    """`records`: by rank and step."""
    parameters, owed, factors = transcribed(recipe, len(records), len(records[0]), bad)
    for rank, steps in enumerate(records):
        for step, expected in enumerate(parameters):
            for name in SHAPES:
                np.testing.assert_allclose(
                    steps[step]["parameters"][name], expected[name], rtol=1e-4, atol=3e-4, err_msg=f"{step} {name}"
                )
        for name, residual in steps[-1]["own"].items():
            np.testing.assert_allclose(residual, owed[rank][name.removeprefix("residual/")], rtol=1e-3, atol=1e-3)
        for slot, by_name in factors.items():
            for name, factor in by_name.items():  # equal to a turn, because a basis is any one of its space
                space = steps[-1]["slots"][slot][name].astype(np.float64)
                np.testing.assert_allclose(space @ space.T, factor @ factor.T, rtol=1e-2, atol=1e-2 * (factor**2).max())
        for name, value in steps[-1]["parameters"].items():
            np.testing.assert_array_equal(value, records[0][-1]["parameters"][name])


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[list[dict]]:
    return [answer.value for answer in two_ranks.run(trained, powersgd_recipe(STEPS), STEPS, bad=BAD)]


@pytest.mark.full
def test_it_is_the_transcription(ranks):
    assert_transcribed(ranks, powersgd_recipe(STEPS), BAD)


@pytest.mark.full
def test_words_in_a_rank_of_their_own_and_in_chunks_are_the_transcription(two_ranks):
    for words in ({"words_rank": 5}, {"words": "largest_chunks", "fraction": 0.2}):
        recipe = powersgd_recipe(12, **words)
        assert_transcribed([answer.value for answer in two_ranks.run(trained, recipe, 12)], recipe)


@pytest.mark.slow
def test_the_layout_of_the_products_does_not_change_the_numbers(two_ranks, ranks):
    """Matrices of one shape as one batch, compiled, as on a GPU, and one by one."""
    recipe = powersgd_recipe(STEPS)
    for answer, alone in zip(two_ranks.run(trained, recipe, 9, fused=True, at_once=True), ranks, strict=True):
        for name, value in answer.value[-1]["parameters"].items():
            np.testing.assert_allclose(value, alone[8]["parameters"][name], rtol=1e-4, atol=1e-4)


@pytest.fixture(
    scope="module",
    params=["float16", "int8", pytest.param("int8 words", marks=pytest.mark.slow)],
)
def narrow(two_ranks, request) -> list[list[dict]]:
    wire, exchange = NARROW[request.param]
    return [answer.value for answer in two_ranks.run(trained, powersgd_recipe(STEPS, wire, **exchange), 12, bad=BAD)]


@pytest.mark.full
def test_narrow_wires_are_near(narrow, ranks):
    for name in SHAPES:
        value, expected = (of_ranks[0][11]["parameters"][name] for of_ranks in (narrow, ranks))
        in_low_rank = name in narrow[0][11]["slots"][LEFT] or name != WORD_EMBEDDINGS
        close = 0.1 if in_low_rank else 1.0  # else the words' gradients are whole
        assert 0 < np.abs(value - expected).max() < close * np.abs(expected - initial()[name]).max(), name


@pytest.mark.full
def test_what_is_owed_and_what_was_sent_is_all_there_was(narrow):
    """The sum of all gradients is what parameters moved by and what ranks still owe; in float16 to its rounding."""
    for name in SHAPES:
        steps = [step for step in range(1, 13) if step != BAD]
        exact = sum(share(rank, step)[name].astype(np.float64) for rank in range(2) for step in steps)
        owed = sum(steps[-1]["own"].get(f"residual/{name}", np.zeros(SHAPES[name])) for steps in narrow)
        moved = (initial()[name] - narrow[0][-1]["parameters"][name].astype(np.float64)) / RATE
        np.testing.assert_allclose(moved + owed, exact, rtol=1e-3, atol=2e-3)
        np.testing.assert_array_equal(*(steps[-1]["parameters"][name] for steps in narrow))
        for slot in (LEFT, RIGHT):
            if name in narrow[0][-1]["slots"][slot]:
                np.testing.assert_array_equal(*(steps[-1]["slots"][slot][name] for steps in narrow))


@pytest.mark.full
def test_what_is_not_finite_on_one_rank_leaves_all_as_it_was(narrow, ranks):
    for steps in (*narrow, *ranks):
        before, bad, after = steps[BAD - 2 : BAD + 1]
        assert bad["progress"]["skipped_steps"] == 1
        for kind in ("parameters", "own"):
            for name, value in before[kind].items():
                np.testing.assert_array_equal(bad[kind][name], value)
        for slot, by_name in before["slots"].items():
            for name, value in by_name.items():
                np.testing.assert_array_equal(bad["slots"][slot][name], value)
        assert np.isfinite(after["norm"])
        assert all(np.isfinite(value).all() for value in after["own"].values())


def planned_bytes(recipe: Recipe, shapes: Shapes) -> list[float]:
    """What a plan says that a rank of two sends in each step of the phase."""
    phase, steps = recipe.phase[0], []
    for stage in recipe.exchange.stages(recipe, phase, shapes, "ring"):
        numbers = sum(math.prod(shape) for shape in sent_shapes(stage, shapes).values())
        steps += [sent_bytes(stage, [numbers], 2)] * round(stage.share * phase.steps)
    return steps


@pytest.mark.full
def test_bytes_are_those_that_collectives_were_given_and_that_a_plan_computes(ranks):
    planned = planned_bytes(powersgd_recipe(STEPS), SHAPES)
    for steps in ranks:
        assert [record["stated_bytes"] for record in steps] == planned
        assert [record["bytes"] for record in steps[:5]] == planned[:5]
        for right, left in zip(steps[5::2], steps[6::2], strict=False):
            assert right["bytes"] < left["bytes"]  # the sides of the word embeddings
            assert right["bytes"] + left["bytes"] == planned[5] + planned[6]
        assert steps[-1]["traces"] == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("wire", "exchange", "stops"),
    [
        ("float16", {"words": "largest_chunks", "dense_wire": "int8"}, (3, 6)),
        pytest.param("float16", {"words": "int8"}, (3, 5, 6, 7), marks=pytest.mark.slow),
        pytest.param("int8", {}, (3, 5, 6, 7), marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_in_each_stage(two_ranks, wire, exchange, stops):
    """Stopped in the dense steps, after the last of the five, and after a right and a left step."""
    recipe = powersgd_recipe(STEPS, wire, **exchange)
    for answer in two_ranks.run(trained_in_parts, recipe, 9, stops):
        whole, *parts = answer.value
        for part in parts:
            for kind in ("parameters", "own"):
                for name, value in whole[kind].items():
                    np.testing.assert_array_equal(value, part[kind][name])
            for slot, by_name in whole["slots"].items():
                for name, value in by_name.items():
                    np.testing.assert_array_equal(value, part["slots"][slot][name])
            assert whole["progress"] == part["progress"]


@pytest.mark.full
def test_another_number_of_ranks_shares_what_was_owed(two_ranks):
    kept = [answer.value[-1] for answer in two_ranks.run(trained, powersgd_recipe(STEPS), 10)]
    names = list(kept[0]["own"])
    before, after = Layout(2, 1, [list(SHAPES)]), Layout(3, 1, [list(SHAPES)])
    owed = total([record["own"] for record in kept], before, SHAPES)
    again = total([shares(owed, names, after, rank) for rank in range(3)], after, SHAPES)
    for name in SHAPES:
        expected = sum(record["own"].get(f"residual/{name}", 0 * initial()[name]) for record in kept)
        np.testing.assert_allclose(again[name], expected, rtol=1e-5, atol=1e-5)
    alone = trained(World(), powersgd_recipe(STEPS), 12, known=kept[0] | {"own": shares(owed, names, after, 0)})
    for name in SHAPES:  # one rank sends nothing, so that it leaves nothing out
        moved = (kept[0]["parameters"][name] - alone[-1]["parameters"][name]) / RATE
        np.testing.assert_allclose(moved, sum(share(0, step)[name] for step in (11, 12)), rtol=1e-3, atol=1e-3)
    assert alone[-1]["bytes"] == alone[-1]["stated_bytes"] == 0


@pytest.mark.slow
def test_the_metrics_of_a_run_have_the_planned_bytes(two_ranks, store, tmp_path):
    recipe = toy_recipe(
        exchange={"method": "powersgd", "rank": 1, "dense": 0.5},
        phase={"steps": 4},
        execution={"micro_batch": 8, "evaluate_steps": 0, "checkpoint_steps": 4, "log_steps": 1},
    )
    two_ranks.run(train_rank, store.path, tmp_path, recipe)
    planned = planned_bytes(recipe, pretraining_shapes(recipe.model, recipe.objective.pairs))
    assert [line["wire_bytes"] for line in metrics(tmp_path)] == planned
    assert planned[-1] < 0.2 * planned[0]
    moved = [load_file(newest(tmp_path) / part_file(rank)) for rank in range(2)]
    assert moved[0].keys() == moved[1].keys()
    assert any(owed.any() for owed in moved[0].values())


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bits_of_one_that_was_not(store, tmp_path):
    """Two ranks are killed with steps behind their last checkpoint; all are in low rank."""
    execution = {"micro_batch": 8, "evaluate_steps": 0, "checkpoint_steps": 4, "log_steps": 1}
    sections = {"exchange": {"method": "powersgd", "rank": 2, "dense": 0.1}, "phase": {"steps": 40}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    script = str(PROJECT / "run" / "run_pretraining.py")
    for output_dir in (killed, killed, whole):
        words = [script, *pretrain_arguments(tmp_path, store, output_dir, execution=execution, **sections)]
        if output_dir is killed and not killed.exists():
            with subprocess.Popen(
                [*horovodrun(2), sys.executable, *words], env=clean_environment(), start_new_session=True
            ) as run:
                try:
                    end = time.monotonic() + PATIENCE_S
                    while not (killed / "metrics.jsonl").exists() or len(metrics(killed)) < 10:
                        assert run.poll() is None
                        assert time.monotonic() < end
                        time.sleep(0.1)
                finally:
                    kill_tree(run.pid)
            assert len(metrics(killed)) < 40
        else:
            done = run_script(2, *words)
            assert done.returncode == 0, done.stdout + done.stderr
    for file in ("model.safetensors", "training/optimizer.safetensors", part_file(0), part_file(1)):
        assert (newest(killed) / file).read_bytes() == (newest(whole) / file).read_bytes(), file


@pytest.mark.slow
def test_three_ranks_and_hosts_of_two_ranks_are_the_transcription_too(tmp_path):
    arguments = [{"steps": 12}, {"steps": 12, "words": "largest_chunks"}, {"steps": 12, "wire": "int8"}]
    for count, hosts in ((3, []), (4, ["-H", "localhost:2,127.0.0.1:2"])):
        directory = tmp_path / str(count)
        directory.mkdir()
        command = [*horovodrun(count), *hosts, sys.executable, "-m", "tests.exchange.powersgd_jobs", str(directory)]
        done = subprocess.run(
            command + [json.dumps(each) for each in arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=clean_environment(),
            cwd=PROJECT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for number, each in enumerate(arguments):
            of_ranks = [pickle.loads(Path(directory, f"{number}.{rank}").read_bytes()) for rank in range(count)]
            assert {inside for inside, _ in of_ranks} == {count - 2 if hosts else 1}
            records = [steps for _, steps in of_ranks]
            if "wire" not in each:
                assert_transcribed(records, powersgd_recipe(**each))
            for name in SHAPES:
                exact = sum(
                    share(rank, step)[name].astype(np.float64) for rank in range(count) for step in range(1, 13)
                )
                owed = sum(steps[-1]["own"].get(f"residual/{name}", np.zeros(SHAPES[name])) for steps in records)
                moved = (initial()[name] - records[0][-1]["parameters"][name].astype(np.float64)) / RATE
                np.testing.assert_allclose(moved + owed, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ({"rank": 0}, r"exchange\.rank = 0: expected at least 1"),
        ({"rank": 65}, r"exchange\.rank = 65: expected .*at most 64"),
        ({"dense": 1.5}, r"exchange\.dense = 1\.5: expected .*at most 1"),
        ({"dense": "auto"}, r"exchange\.dense = 'auto': expected a number or 'warmup'"),
        ({"dense_wire": "signs"}, r"exchange\.dense_wire = 'signs': expected one of same, float32, float16, int8"),
        ({"words": "dense"}, r"exchange\.words = 'dense': expected one of low_rank, largest_chunks, int8"),
        ({"words_rank": 65}, r"exchange\.words_rank = 65: expected .*at most 64"),
        ({"words_rank": -1}, r"exchange\.words_rank = -1: expected at least 0"),
        ({"words": "largest_chunks", "fraction": 0.0}, r"exchange\.fraction = 0\.0: expected more than 0"),
        ({"words": "largest_chunks", "chunk": 8}, r"exchange\.chunk = 8: expected at least 16"),
        ({"interval": 4}, r"exchange\.interval = 4: exchange\.method = 'powersgd' has no such setting"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(exchange, message):
    with pytest.raises(UserError, match=message):
        toy_recipe(exchange={"method": "powersgd", **exchange})


def test_narrow_sums_in_two_steps_are_refused():
    with pytest.raises(
        UserError, match=r"execution\.reduction = 'two_step': .*'powersgd' sums float16 numbers by ring"
    ):
        toy_recipe(exchange={"method": "powersgd"}, numerics={"wire": "float16"}, execution={"reduction": "two_step"})
    toy_recipe(exchange={"method": "powersgd"}, numerics={"wire": "int8"}, execution={"reduction": "two_step"})
