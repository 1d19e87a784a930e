"""The mean of a run's last checkpoints, and what has none."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.evaluate import evaluate
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.runs.checkpoint import HASHES, path_of
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runs.state import Progress
from tests.toy_runs import new_state, save
from tests.toys import toy_recipe

RECIPE = toy_recipe(execution={"keep_checkpoints": 9}, phase={"steps": 40})


def save_step(output_dir, store, step: int, recipe=RECIPE) -> None:
    """A checkpoint of parameters like no other step's."""
    random, model = np.random.default_rng(step), recipe.in_phase(recipe.phase[recipe.phase_at(step)]).model
    shapes = pretraining_shapes(model, recipe.objective.pairs)
    parameters = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save(output_dir, new_state(parameters, Progress(step)), recipe, store, {"phase": 0, "epoch": 1, "row": 17})


def average(*words: object) -> int:
    return dispatch(parse(["bert-horovod", "average", *map(str, words)]))


@pytest.fixture(scope="module")
def run(tmp_path_factory, store):
    """A run with checkpoints of steps 10, 20, 30 and 40, of unlike parameters."""
    output_dir = tmp_path_factory.mktemp("averaged") / "my-bert"
    for step in (10, 20, 30, 40):
        save_step(output_dir, store, step)
    return output_dir


def test_it_is_the_mean_in_float64_and_is_read_as_any_checkpoint(run, store, tmp_path, capsys):
    mean = tmp_path / "mean"
    assert average(run, "--last", 3, "--output", mean) == 0
    said = capsys.readouterr().out
    assert "3 checkpoints of" in said
    assert f"evaluate {mean} --data_dir STORE --sequence_length 32" in said
    parts = [read_directory(path_of(run, step)).parameters for step in (20, 30, 40)]
    for name, array in read_directory(mean).parameters.items():
        expected = sum(part[name].astype(np.float64) for part in parts) / 3
        assert np.array_equal(array, expected.astype(np.float32)), name
    card = (mean / "README.md").read_text(encoding="utf-8")
    assert "# my-bert, mean of 3 checkpoints up to step 40" in card
    assert "| mean of | 3 checkpoints, each parameter in float64: steps 20, 30, 40 |" in card
    assert "Losses" not in card
    beside = [evaluate(find_checkpoint(path), store.path, 32, rows=8)["held_out_mlm_loss"] for path in (mean, run)]
    assert beside[0] < beside[1]  # random parameters cancel


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (path_of(copy, 30) / "vocab.txt").write_text("broken")
    assert average(copy, "--last", 3, "--output", tmp_path / "mean") == 0
    assert "steps 10, 20, 40\nleft out    step 30, which is damaged\n" in capsys.readouterr().out


def test_checkpoints_of_vocabularies_in_another_order_have_no_mean(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    vocabulary, hashes = path_of(copy, 40) / "vocab.txt", path_of(copy, 40) / HASHES
    vocabulary.write_text("\n".join([*vocabulary.read_text().split("\n")[:-3], "zebra", "yak", ""]))
    recorded = json.loads(hashes.read_text())
    hashes.write_text(json.dumps(recorded | {"vocab.txt": hashlib.sha256(vocabulary.read_bytes()).hexdigest()}))
    assert average(copy, "--last", 2, "--output", tmp_path / "mean") == 2
    assert "step-00000040 has another vocabulary or tokenizer than the oldest" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--last", "1"], "--last 1: expected at least 2"),
        (["RUN", "--last", "5"], "--last 5: RUN has 4 undamaged checkpoint(s), of step 10, 20, 30, 40; expected at"),
        (["RUN/checkpoints/step-00000040"], "is one checkpoint; expected the output_dir of a run"),
        (["none"], "RUN: there is none at none"),
        (["RUN", "--last", "2", "--output", "RUN/mean"], "--output RUN/mean is in the run"),
        (["RUN", "--last", "2", "--output", "RUN/checkpoints"], "RUN/checkpoints"),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_name(run, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "RUN")
    (tmp_path / "RUN" / "run.json").write_text("{}")
    assert average(*words, *([] if "--output" in words else ["--output", "mean"])) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "mean").exists()


def test_a_model_that_grew_between_has_no_mean(store, tmp_path, capsys):
    recipe = toy_recipe(model={"num_hidden_layers": 2}, execution={"keep_checkpoints": 9}, phase={"steps": 10})
    changes = ({"num_hidden_layers": 1}, {"grow": "stack"})
    phases = tuple(dataclasses.replace(recipe.phase[0], **change) for change in changes)
    recipe = dataclasses.replace(recipe, phase=phases)
    for step in (10, 20):
        save_step(tmp_path / "run", store, step, recipe)
    assert average(tmp_path / "run", "--last", 2, "--output", tmp_path / "mean") == 2
    assert "step-00000010 is of another model than step-00000020 (1 and 2 layers)" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()
