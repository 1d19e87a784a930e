"""Damaged or hostile checkpoints and output directories: named, passed over or refused, and nothing else happens."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bert_horovod.errors import ReportedError
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.runs.directory import claim
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.state import Progress
from bert_horovod.storage.reading import hash_file
from bert_horovod.tasks.pretraining import Pretraining
from tests.mutations import put_in_its_place, sandbox
from tests.toy_runs import new_state, save
from tests.toys import toy_recipe

TASK = Pretraining(pairs=True)

RECIPE = toy_recipe(model={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1})
SHAPES = pretraining_shapes(RECIPE.model, RECIPE.objective.pairs)
NEWEST = "checkpoints/step-00000020"
FILES = (
    *("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"),
    *("training/hashes.json", "training/optimizer.safetensors", "training/state.json"),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory, store) -> Path:
    """An output directory as a run leaves it, with checkpoints of steps 10 and 20."""
    path = tmp_path_factory.mktemp("original") / "run"
    os.close(claim(path, RECIPE, store.hash))
    for step in (10, 20):
        random = np.random.default_rng(step)
        arrays = [{name: random.random(shape, np.float32) for name, shape in SHAPES.items()} for _ in range(3)]
        progress = Progress(step, step, 2.0, 3, wire_maxima=dict.fromkeys(SHAPES, 0.5))
        state = new_state(arrays[0], progress, {"m": arrays[1], "v": arrays[2]})
        save(path, state, RECIPE, store, {"phase": 0, "epoch": 0, "row": 1})
    return path


def rehash(checkpoint: Path) -> None:
    """What an attacker does after a change: make the hashes right, as far as they can be read."""
    path = checkpoint / "training" / "hashes.json"
    hashes = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(hashes, dict):
        files = [name for name in hashes if (checkpoint / name).is_file()]
        path.write_text(json.dumps(hashes | {name: hash_file(checkpoint / name) for name in files}), encoding="utf-8")


def change_state(changed):
    """Changes the record in state.json."""

    def change(newest: Path) -> None:
        path = newest / "training" / "state.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        changed(record)
        path.write_text(json.dumps(record), encoding="utf-8")

    return change


def change_tensors(file: str, name: str, changed):
    """Changes a tensor; None takes it away."""

    def change(newest: Path) -> None:
        tensors = safetensors.numpy.load_file(newest / file)
        tensors[name] = changed(tensors[name])
        if tensors[name] is None:
            del tensors[name]
        safetensors.numpy.save_file(tensors, newest / file)

    return change


def not_a_number(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[-1] = np.nan
    return values


BIAS = "bert.embeddings.LayerNorm.bias"
SLOTS, WEIGHTS = "training/optimizer.safetensors", "model.safetensors"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda newest: (newest / "training/hashes.json").write_text("{}"), "training/state.json"),
        (lambda newest: (newest / "training/hashes.json").write_text("[]"), "training/hashes.json"),
        (lambda newest: (newest / "training/hashes.json").write_text('{"../../../x": "y"}'), "../../../x"),
        (change_state(lambda record: record["progress"].update(step=21)), "step 21"),
        (change_state(lambda record: record["progress"].update(added=1)), "added"),
        (change_state(lambda record: record["recipe"]["phase"][0].update(sequence_length=16)), "length: 32 -> 16"),
        (lambda newest: (newest / "training/state.json").write_text("{}"), "recipe"),
        (change_tensors(SLOTS, f"m/{BIAS}", lambda _: None), f"m/{BIAS}"),
        (change_tensors(SLOTS, f"m/{BIAS}", not_a_number), f"m/{BIAS}"),
        (change_tensors(SLOTS, f"v/{BIAS}", lambda values: values[:-1]), f"v/{BIAS}"),
        (change_tensors(SLOTS, f"v/{BIAS}", lambda values: values.astype(np.float64)), f"v/{BIAS}"),
        (change_tensors(WEIGHTS, BIAS, lambda _: None), BIAS),
        (change_tensors(WEIGHTS, BIAS, not_a_number), BIAS),
        (change_tensors(WEIGHTS, BIAS, lambda values: values[None]), BIAS),
        (change_tensors(WEIGHTS, "cls.predictions.bias", lambda _: None), "cls.predictions.bias"),
    ],
)
def test_what_right_hashes_do_not_tell_is_found_and_the_one_before_is_taken(tmp_path, original, capsys, change, named):
    with sandbox(original, tmp_path / "box") as box:
        newest = box.directory / NEWEST
        change(newest)
        rehash(newest)
        assert box.read(load_newest, box.directory, TASK).path.name == "step-00000010"
    messages = capsys.readouterr().err
    assert "step-00000020 is damaged (" in messages
    assert named in messages
    assert messages.endswith("; taking the one before\n")


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_read_through_a_link_out_of_the_checkpoint(tmp_path, original, name):
    with sandbox(original, tmp_path / "box") as box:
        put_in_its_place(box.directory / NEWEST / name, "link_out", box.outside)
        assert box.read(load_newest, box.directory, TASK).path.name == "step-00000010"


def test_a_linked_lock_makes_no_file_elsewhere(tmp_path, original, store):
    with sandbox(original, tmp_path / "box") as box:
        (box.directory / ".lock").unlink(missing_ok=True)
        (box.directory / ".lock").symlink_to(box.outside / "made")
        assert isinstance(box.read(claim, box.directory, RECIPE, store.hash), ReportedError)
