"""PowerSGD and the largest chunks: what they do not share with others, which test_promises.py has."""

import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.costs.exchanges import sent_bytes, sent_shapes
from bert_horovod.exchange.compressed.payload_parts import LEFT
from bert_horovod.model.parameters import WORD_EMBEDDINGS, Shapes
from bert_horovod.recipe.sections import Recipe
from tests.exchange.exchange_jobs import SHAPES, exchange_recipe, initial, trained
from tests.exchange.promises import chunks, low_rank
from tests.exchange.transcribed import WORDS, WORDS_SHAPES, powersgd, words_initial, words_share
from tests.horovod_runs import horovodrun, run_process

SLOW, STEPS = pytest.mark.slow, 20


@pytest.mark.slow
def test_the_layout_of_the_products_does_not_change_the_numbers(two_ranks):
    """Matrices of one shape as one batch, compiled, as on a GPU, and one by one."""
    as_on_a_gpu = two_ranks.run(trained, low_rank(), 9, tensors=WORDS, fused=True, at_once=True)
    for answer, alone in zip(as_on_a_gpu, two_ranks.run(trained, low_rank(), 9, tensors=WORDS), strict=True):
        for name, value in answer.value["parameters"][-1].items():
            np.testing.assert_allclose(value, alone.value["parameters"][-1][name], rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("wire", "exchange"),
    [("float16", {}), ("int8", {}), pytest.param("float16", {"words": "int8", "dense_wire": "int8"}, marks=SLOW)],
)
def test_narrow_wires_are_near(two_ranks, wire, exchange):
    narrow, wide = (
        two_ranks.run(trained, recipe, 12, tensors=WORDS)[0].value
        for recipe in (low_rank(wire=wire, **exchange), low_rank())
    )
    for name, first in words_initial().items():
        value, expected = (each["parameters"][-1][name] for each in (narrow, wide))
        in_low_rank = name in narrow["slots"][LEFT] or name != WORD_EMBEDDINGS
        close = 0.1 if in_low_rank else 1.0  # else the words' gradients are whole
        assert 0 < np.abs(value - expected).max() < close * np.abs(expected - first).max(), name


def planned_bytes(recipe: Recipe, shapes: Shapes) -> list[float]:
    """What a plan says that a rank of two sends in each step of the phase."""
    phase, steps = recipe.phase[0], []
    for stage in recipe.exchange.stages(recipe, phase, shapes, "ring"):
        numbers = sum(math.prod(shape) for shape in sent_shapes(stage, shapes).values())
        steps += [sent_bytes(stage, [numbers], 2)] * round(stage.share * phase.steps)
    return steps


@pytest.mark.full
def test_bytes_of_each_step_are_those_that_a_plan_computes(two_ranks):
    planned = planned_bytes(low_rank(), WORDS_SHAPES)
    record = two_ranks.run(trained, low_rank(), 9, tensors=WORDS)[0].value
    assert record["stated_bytes"] == planned[:9]
    assert record["bytes"][:5] == planned[:5]
    right, left = record["bytes"][5:7]
    assert right < left  # the sides of the word embeddings
    assert right + left == planned[5] + planned[6]


@pytest.mark.slow
def test_three_ranks_and_hosts_of_two_ranks_are_the_transcription_too(tmp_path):
    recipes = [low_rank(12), low_rank(12, words="largest_chunks"), low_rank(12, "int8")]
    jobs = tmp_path / "jobs"
    jobs.write_bytes(pickle.dumps([(recipe, WORDS) for recipe in recipes]))
    for count, hosts in ((3, []), (4, ["-H", "localhost:2,127.0.0.1:2"])):
        directory = tmp_path / str(count)
        directory.mkdir()
        command = [*horovodrun(count), *hosts, sys.executable, "-m", "tests.exchange.exchange_jobs", directory, jobs]
        done = run_process(command)
        assert done.returncode == 0, done.stdout + done.stderr
        for number, recipe in enumerate(recipes):
            of_ranks = [pickle.loads(Path(directory, f"{number}.{rank}").read_bytes()) for rank in range(count)]
            assert {inside for inside, _ in of_ranks} == {count - 2 if hosts else 1}
            records = [record for _, record in of_ranks]
            if recipe.numerics.wire == "float32":
                for record, expected in zip(records, powersgd(recipe, 12, ranks=count)[-1], strict=True):
                    for name, value in expected.items():
                        if "@" not in name:
                            np.testing.assert_allclose(record["states"][-1][name], value, rtol=1e-3, atol=1e-3)
            for name, first in words_initial().items():
                exact = sum(
                    words_share(rank, step)[name].astype(np.float64) for rank in range(count) for step in range(1, 13)
                )
                owed = sum(record["own"].get(f"residual/{name}", np.zeros(first.shape)) for record in records)
                moved = (first - records[0]["parameters"][-1][name].astype(np.float64)) / WORDS.rate
                np.testing.assert_allclose(moved + owed, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.full
def test_all_chunks_are_the_exchange_of_gradients_to_rounding(two_ranks):
    adamw = {"name": "adamw", "max_grad_norm": 5.0}
    all_of_them = two_ranks.run(trained, chunks(optimizer=adamw, dense=1.0), STEPS)[0].value
    plain = two_ranks.run(trained, exchange_recipe(STEPS, optimizer=adamw), STEPS)[0].value
    for step in range(STEPS):
        for name in SHAPES:
            computed, expected = (each["parameters"][step][name] for each in (all_of_them, plain))
            np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(all_of_them["norms"], plain["norms"], rtol=1e-5)


@pytest.mark.slow
def test_float16_on_the_wire_is_near(two_ranks):
    wide, narrow = (two_ranks.run(trained, chunks(wire, dense=0.25), 8)[0].value for wire in ("float32", "float16"))
    for name in SHAPES:
        difference = np.abs(wide["parameters"][7][name] - narrow["parameters"][7][name]).max()
        assert 0 < difference < 0.01 * np.abs(wide["parameters"][7][name] - initial()[name]).max(), name
