"""Rules without slots, or with slots of other shapes than the parameters', train, save and resume as the others do."""

import numpy as np
import pytest
import safetensors.numpy

from bert_horovod.errors import UserError
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.optimizers.rules import RULES
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.pretraining import Pretraining
from tests.optimizers.toy_rule import SignMomentum
from tests.toy_runs import assert_same_files, losses, metrics, newest, save, train
from tests.toys import more_rows, toy_recipe


def sections(name: str, learning_rate: float, **optimizer) -> dict[str, dict]:
    return {
        "optimizer": {"name": name, **optimizer},
        "phase": {"learning_rate": learning_rate},
        "execution": {"checkpoint_steps": 5},
    }


def test_a_checkpoint_without_slots_comes_back(store, tmp_path):
    recipe = toy_recipe(optimizer={"name": "sgd"})
    parameters = initial_values(pretraining_shapes(recipe.model, recipe.objective.pairs), 0.02, 0)
    state = TrainingState(parameters, {}, Progress(step=10, updates=10))
    path = save(tmp_path, state, recipe, store, {"phase": 0, "epoch": 0, "row": 0})
    assert safetensors.numpy.load_file(path / "training" / "optimizer.safetensors") == {}
    checkpoint = load_newest(tmp_path, Pretraining(recipe.objective.pairs))
    assert checkpoint.slots == {}
    assert TrainingState(checkpoint.parameters, {}, checkpoint.progress, checkpoint.slots).hash() == state.hash()


@pytest.mark.full
@pytest.mark.parametrize(
    "changed",
    [
        sections("sgd", 0.5),
        pytest.param(sections("stable_adamw", 0.002), marks=pytest.mark.slow),
        pytest.param(sections("muon", 0.002), marks=pytest.mark.slow),
        *(
            pytest.param(sections(name, rate, **settings), marks=pytest.mark.slow)
            for name, (rate, settings) in more_rows("rows.RULE_RUNS").items()
        ),
    ],
    ids=lambda changed: changed["optimizer"]["name"],
)
def test_a_rule_learns_and_a_stopped_run_goes_on_as_if_it_had_not_been(changed, store, tmp_path):
    whole = train(store, tmp_path / "whole", **changed)
    stopped = train(store, tmp_path / "stopped", max_steps=8, **changed)
    train(store, stopped, **changed)
    assert [line["step"] for line in metrics(whole)] == list(range(1, 21))
    numbers = losses(whole)
    assert losses(stopped) == numbers
    assert np.mean(numbers[-5:]) < np.mean(numbers[:5]) - 0.03  # of 0.1 that random tokens have to teach
    assert_same_files(stopped, whole)


@pytest.mark.full
def test_a_new_rule_is_a_file_and_a_line(monkeypatch, store, tmp_path):
    monkeypatch.setitem(RULES._own, "sign_momentum", SignMomentum)  # the line
    changed = {"optimizer": {"name": "sign_momentum", "length": 0.5, "weight_decay": 0}, "phase": {"warmup": 0}}
    run = train(store, tmp_path / "run", max_steps=1, **changed)
    before = safetensors.numpy.load_file(newest(run) / "model.safetensors")
    train(store, run, max_steps=2, **changed)
    after = safetensors.numpy.load_file(newest(run) / "model.safetensors")
    rate = metrics(run)[1]["learning_rate"]
    moved = np.abs(
        after["bert.encoder.layer.0.output.dense.weight"] - before["bert.encoder.layer.0.output.dense.weight"]
    )
    np.testing.assert_allclose(moved, 0.5 * rate, rtol=1e-3)
    slots = safetensors.numpy.load_file(newest(run) / "training/optimizer.safetensors")
    assert {key.partition("/")[0] for key in slots} == {"m"}
    with pytest.raises(UserError, match=r"optimizer.length = 2.0: .*'adamw' .* or optimizer.name = sign_momentum"):
        toy_recipe(optimizer={"length": 2.0})
