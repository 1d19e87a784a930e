"""A rule without slots trains, is saved and resumes as the others do."""

import numpy as np
import safetensors.numpy

from bert_horovod.model.parameters import initial_values, pretraining_shapes
from bert_horovod.runs.checkpoint import load_newest
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.pretraining import Pretraining
from tests.toy_runs import metrics, newest, save, train
from tests.toys import toy_recipe

SECTIONS = {"optimizer": {"name": "sgd"}, "phase": {"learning_rate": 0.5}, "execution": {"checkpoint_steps": 5}}


def test_a_checkpoint_without_slots_comes_back(store, tmp_path):
    recipe = toy_recipe(**SECTIONS)
    parameters = initial_values(pretraining_shapes(recipe.model, recipe.objective.pairs), 0.02, 0)
    state = TrainingState(parameters, (), Progress(step=10, updates=10))
    path = save(tmp_path, state, recipe, store, {"phase": 0, "epoch": 0, "row": 0})
    assert safetensors.numpy.load_file(path / "training" / "optimizer.safetensors") == {}
    found = load_newest(tmp_path, Pretraining(recipe.objective.pairs))
    assert found.slots == {}
    assert TrainingState(found.parameters, (), found.progress, found.slots).hash() == state.hash()


def test_sgd_learns_and_a_stopped_run_goes_on_as_if_it_had_not_been(store, tmp_path):
    whole = train(store, tmp_path / "whole", **SECTIONS)
    stopped = train(store, tmp_path / "stopped", max_steps=8, **SECTIONS)
    train(store, stopped, **SECTIONS)
    assert [line["step"] for line in metrics(whole)] == list(range(1, 21))
    losses, again = ([line["loss"] for line in metrics(run)] for run in (whole, stopped))
    assert again == losses
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.03  # of 0.1 that random tokens have to teach
    assert (newest(stopped) / "model.safetensors").read_bytes() == (newest(whole) / "model.safetensors").read_bytes()
