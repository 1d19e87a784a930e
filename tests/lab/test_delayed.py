"""lab/delayed.py: delays of a profile, their file, and a step that sleeps."""

import json
import time

import numpy as np
import pytest

from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.errors import UserError
from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from lab.delayed import delayed, delays_of, measured_delays, read_delays
from tests.toys import toy_recipe

DELAYS = {"forward_s": 0.2, "head_s": 0.1, "layers_s": [0.15, 0.15], "embeddings_s": 0.05, "update_s": 0.02}


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
        ("[]", "expected what `python lab/delayed.py measure` prints"),
        (json.dumps(DELAYS | {"head_s": "long"}), "expected what `python lab/delayed.py measure` prints"),
        (json.dumps(DELAYS | {"layers_s": [0.1]}), "of a model of 2 layers"),
        (json.dumps(DELAYS | {"layers_s": [0.1, -1]}), "of a model of 2 layers"),
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
    with delayed(DELAYS):
        step = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]), 2)
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


@pytest.mark.full
def test_a_step_is_measured_by_its_parts():
    measured = measured_delays(toy_recipe(execution={"micro_batch": 4}), 2)
    assert set(measured) == set(DELAYS)
    assert measured["forward_s"] > 0
    assert len(measured["layers_s"]) == 2
