"""Communication off, overlapped and held back: arithmetic, and real ranks that sleep instead of computing."""

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BackwardProfile, by_size
from bert_horovod.errors import UserError
from bert_horovod.measuring.communication import hidden_share, measure
from bert_horovod.measuring.delayed import DelayedStep, DelayedUpdater, delays_of, read_delays
from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from bert_horovod.training.step_results import StepTimes
from lab.contestants import METHODS
from tests.horovod_runs import run_ranks
from tests.toys import toy_recipe, toy_recipe_table

DELAYS = {"forward_s": 0.2, "head_s": 0.1, "layers_s": [0.15, 0.15], "embeddings_s": 0.05, "update_s": 0.02}
COMMAND = "import sys; from bert_horovod.__main__ import main; sys.argv[0] = 'bert-horovod'; main()"


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


def test_delays_are_the_differences_of_a_profile():
    names = list(pretraining_shapes(Model(num_hidden_layers=2), pairs=False))
    ends = {"cls": 3.0, "bert.encoder.layer.1": 4.0, "bert.encoder.layer.0": 6.0}
    ready = {name: next((end for key, end in ends.items() if name.startswith(key)), 6.5) for name in names}
    ready[WORD_EMBEDDINGS] = 2.5
    delays = delays_of(BackwardProfile(2.0, ready, 7.0, {WORD_EMBEDDINGS: 5}), 0.25)
    assert delays == {"forward_s": 2.0, "head_s": 1.0, "layers_s": [1.0, 2.0], "embeddings_s": 1.0, "update_s": 0.25}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected the JSON object"),
        ("[]", "expected the JSON object"),
        (json.dumps(DELAYS | {"head_s": "long"}), "expected the JSON object"),
        (json.dumps(DELAYS | {"layers_s": [0.1]}), "expected seconds of 2 layers"),
        (json.dumps(DELAYS | {"layers_s": [0.1, -1]}), "expected seconds from 0 on"),
    ],
)
def test_a_file_that_is_no_delays_is_refused(tmp_path, text, complaint):
    path = tmp_path / "delays.json"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_delays(path, 2)
    with pytest.raises(UserError, match="No such file"):
        read_delays(tmp_path / "absent", 2)


def test_a_delayed_step_sleeps_as_long_as_it_is_told():
    recipe = toy_recipe(execution={"micro_batch": 4})
    classes = (partial(DelayedStep, DELAYS), partial(DelayedUpdater, DELAYS))
    step = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]), 2, classes=classes)
    step.run(with_times=True)
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    spans: list[float] = []
    for _ in range(3):  # on a loaded machine a clock may be asked after its sleep has begun
        began = time.monotonic()
        result = step.run(with_times=True)
        assert time.monotonic() - began >= 2 * 0.65 + 0.02
        assert result.finite
        spans = [end - begin for begin, end in result.times.micro_batches]
        if min(spans) >= 0.65:
            break
    assert min(spans) >= 0.65
    for name, value in before.items():
        np.testing.assert_array_equal(step.state.parameters[name], value)


RECIPE = toy_recipe(  # several buckets, of which the first leaves early
    execution={"micro_batch": 8, "bucket_bytes": 20000}, numerics={"wire": "float16"}
)


def measure_comm(world: World, recipe: Recipe, *arguments: Any) -> dict:
    """A job for two_ranks."""
    return measure(recipe, world, *arguments)


@pytest.mark.full
def test_two_ranks_measure_the_step_with_communication_off_overlapped_and_held_back(two_ranks):
    measured = two_ranks.run(measure_comm, RECIPE, 2, DELAYS)[0].value
    assert_measured(measured)


@pytest.mark.slow
def test_a_step_that_clips_buckets_is_measured_with_the_buckets_that_it_trains_with(two_ranks):
    recipe = toy_recipe(
        model={"vocab_size": 8_000},  # a table that would be sent before its looked-up rows are known
        optimizer={"clipping": "bucket", "max_grad_norm": 1.0},
        execution={"micro_batch": 8, "bucket_bytes": "auto"},
    )
    measured = two_ranks.run(measure_comm, recipe, 2, DELAYS | {"embeddings_s": 0.5})[0].value
    by_size_alone = by_size(pretraining_shapes(recipe.model, recipe.objective.pairs), "auto")
    assert (measured["rows"], len(measured["bucket_bytes"])) == (0, len(by_size_alone.buckets))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_scaling_benchmark_is_measured(two_ranks, method):
    settings, _, steps, warm_up = METHODS[method]
    recipe = recipe_from_table(toy_recipe_table(execution={"micro_batch": 16, "bucket_bytes": 20000}), settings)
    quick = DELAYS | {"forward_s": 0.01, "head_s": 0.01, "layers_s": [0.01, 0.01], "embeddings_s": 0.01}
    measured = two_ranks.run(measure_comm, recipe, steps, quick, None, warm_up)[0].value
    everything = 4 * sum(math.prod(shape) for shape in pretraining_shapes(recipe.model, pairs=True).values())
    assert 0 < measured["wire_bytes"] < everything
    assert measured["step_s"]["overlapped"] > 0.05
    assert measured["predicted_s"] is None  # the prediction is of gradients
    held_back = recipe.exchange.overlaps and recipe.exchange.cycle == 1
    assert set(measured["step_s"]) == {"off", "overlapped"} | ({"held_back"} if held_back else set())


@pytest.mark.slow
def test_the_command_measures_under_horovodrun(tmp_path):
    recipe, delays = tmp_path / "recipe.toml", tmp_path / "delays.json"
    recipe.write_text(recipe_to_toml(RECIPE))
    delays.write_text(json.dumps(DELAYS))
    trace = tmp_path / "trace"
    flags = ["bench", "comm", "--recipe", str(recipe), "--steps", "2", "--delay", str(delays), "--trace", str(trace)]
    done = run_ranks(2, COMMAND, *flags, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "step_s" in line]
    assert_measured(json.loads(line.partition("{")[1] + line.partition("{")[2]))
    assert_traced(trace)


def assert_measured(found: dict) -> None:
    assert (found["world_size"], found["micro_batches"]) == (2, 2)
    assert all(found["step_s"][kind] >= 2 * 0.65 + 0.02 for kind in ("off", "overlapped", "held_back"))
    assert found["exposed_s"] == found["step_s"]["overlapped"] - found["step_s"]["off"]
    assert 0 <= found["hidden_share"] <= 1
    assert all(0 <= found["cores_busy"][kind] <= 1 for kind in ("off", "overlapped", "held_back"))
    assert found["wire_bytes"] == found["bytes_reduced"] >= sum(found["bucket_bytes"]) > 0
    assert found["delays"] == DELAYS
    assert 0 < found["floor_s"] < 1
    assert found["predicted_s"] >= found["step_s"]["off"]


def assert_traced(trace: Path) -> None:
    events = json.loads((trace / "steps-1-1.json").read_text())["traceEvents"]
    ours = [event for event in events if event["pid"] == 0 and event["ph"] == "X"]
    horovods = [event for event in events if event["pid"] >= 1000 and event.get("name") == "ALLREDUCE"]
    backward = next(event for event in ours if event["name"] == "step 1, micro-batch 1")
    # Horovod's own clock and ours agree: its all-reduces lie within our step.
    assert horovods
    begin, end = min(event["ts"] for event in ours), max(event["ts"] + event["dur"] for event in ours)
    assert all(begin <= event["ts"] <= end for event in horovods)
    # The head's bucket is under way while backward goes on.
    early = [
        event for event in ours if event["tid"] == "all-reduces" and event["ts"] < backward["ts"] + backward["dur"]
    ]
    assert early
