"""Checkpoints: whole or not there, found by their hashes, and the state bit for bit; best.json names the best one."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.settings import Objective, Phase
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.runs import checkpoint
from bert_horovod.runs.checkpoint import (
    BEST,
    HASHES,
    Best,
    best_record,
    path_of,
    paths,
    recorded_length,
    recorded_pair,
    step_of,
)
from bert_horovod.runs.model_card import CARD
from bert_horovod.runs.opening import OpenCheckpoint, find_checkpoint
from bert_horovod.runs.rank_parts import remove_waiting
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.pretraining import Pretraining
from tests.toy_runs import new_state, save
from tests.toys import toy_recipe

TASK = Pretraining(pairs=True)

RECIPE = toy_recipe(execution={"keep_checkpoints": 2})
POSITION = {"phase": 0, "epoch": 1, "row": 17}
FILES = (
    *("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
    *("training/optimizer.safetensors", "training/state.json", "training/hashes.json"),
)


def random_state(step: int) -> TrainingState:
    """A state of which nothing is 0 or like another step's, and with values that text would not carry."""
    random = np.random.default_rng(step)

    def arrays() -> dict[str, np.ndarray]:
        tensors = {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in pretraining_shapes(RECIPE.model, RECIPE.objective.pairs).items()
        }
        for tensor in tensors.values():
            tensor.flat[:2] = -0.0, np.float32(1e-42)
        return tensors

    progress = Progress(step, step - 1, 2.0**15, 3, 1, 0, 4.5, wire_maxima={"a": float(np.float32(0.1)), "b": 2.0**-90})
    return new_state(arrays(), progress, {"m": arrays(), "v": arrays()})


def arrays(state: TrainingState) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in state.parameters.items()}


@pytest.fixture(scope="module")
def states() -> dict[int, TrainingState]:
    return {step: random_state(step) for step in (10, 20, 30)}


@pytest.fixture
def saved(tmp_path, states, store) -> Path:
    """An output directory with checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, states[step], RECIPE, store, POSITION)
    return tmp_path


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in (output_dir / "checkpoints").iterdir())


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert (array.dtype, array.shape) == (np.float32, expected[name].shape)
        assert array.tobytes() == expected[name].tobytes(), name


def test_the_state_comes_back_bit_for_bit(saved, states):
    checkpoint = load_newest(saved, TASK)
    assert checkpoint.path == saved / "checkpoints" / "step-00000020"
    assert checkpoint.progress == states[20].progress
    assert_same_bits(checkpoint.parameters, arrays(states[20]))
    assert checkpoint.slots.keys() == {"m", "v"}
    for slot, slot_arrays in checkpoint.slots.items():
        assert_same_bits(slot_arrays, {name: variable.numpy() for name, variable in states[20].slots[slot].items()})
    again = new_state(checkpoint.parameters, checkpoint.progress, checkpoint.slots)
    assert again.hash() == states[20].hash()


def test_a_checkpoint_holds_parameters_and_slots_and_nothing_else(saved):
    directory = saved / "checkpoints" / "step-00000020"
    shapes = pretraining_shapes(RECIPE.model, RECIPE.objective.pairs)
    assert {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == {*FILES, CARD}
    assert set(safetensors.numpy.load_file(directory / "model.safetensors")) == set(shapes)
    slots = safetensors.numpy.load_file(directory / "training" / "optimizer.safetensors")
    assert set(slots) == {f"{slot}/{name}" for slot in ("m", "v") for name in shapes}
    assert len({(directory / name).stat().st_mode for name in FILES}) == 1  # all may read what some may


def test_a_checkpoint_says_where_the_run_is_and_what_it_is(saved, store, states):
    record = json.loads((saved / "checkpoints" / "step-00000020" / "training" / "state.json").read_text())
    assert record["position"] == POSITION
    assert record["store"] == store.hash
    assert record["recipe"] == recipe_to_table(RECIPE)
    assert record["progress"] == dataclasses.asdict(states[20].progress)


def test_checkpoints_are_in_the_order_of_their_steps_however_many_digits_these_have(tmp_path):
    assert load_newest(tmp_path, TASK) is None
    (tmp_path / "checkpoints").mkdir()
    assert load_newest(tmp_path, TASK) is None
    for step in (99_999_999, 100_000_000, 5):
        path_of(tmp_path, step).mkdir()
    assert [step_of(path.name) for path in paths(tmp_path)] == [5, 99_999_999, 100_000_000]


def test_a_damaged_later_checkpoint_does_not_take_a_good_ones_place(saved, states, store):
    flip(saved / "checkpoints" / "step-00000020" / "model.safetensors")
    state = states[10]
    resumed = new_state(arrays(state), dataclasses.replace(state.progress, step=15))
    one = dataclasses.replace(RECIPE, execution=dataclasses.replace(RECIPE.execution, keep_checkpoints=1))
    save(saved, resumed, one, store, POSITION)
    assert names(saved) == ["step-00000015", "step-00000020"]
    assert load_newest(saved, TASK).progress.step == 15


def test_saving_a_step_again_replaces_its_checkpoint(saved, states, store):
    flip(saved / "checkpoints" / "step-00000020" / "model.safetensors")
    save(saved, states[20], RECIPE, store, POSITION)
    assert names(saved) == ["step-00000010", "step-00000020"]
    assert load_newest(saved, TASK).progress.step == 20


def test_what_a_kill_left_half_written_is_no_checkpoint_and_goes_with_the_next_save(saved, states, store):
    checkpoint = saved / "checkpoints" / "step-00000020"
    for step in (25, 30):
        half = checkpoint.with_name(f".step-000000{step}.partial")
        shutil.copytree(checkpoint, half)
        (half / "training" / "hashes.json").unlink()
    assert load_newest(saved, TASK).path == checkpoint
    save(saved, states[30], RECIPE, store, POSITION)
    assert names(saved) == ["step-00000020", "step-00000030"]


OTHERS = ("step-00000020-best", "step-20", "step-00000021x", "step-0000000020")
OTHERS += (".step-00000020-mine.partial", ".part-mine")


def test_what_a_user_puts_beside_checkpoints_is_not_counted_not_mentioned_and_not_touched(saved, states, store, capsys):
    checkpoints = saved / "checkpoints"
    for name in OTHERS:
        shutil.copytree(checkpoints / "step-00000020", checkpoints / name)
    (checkpoints / "step-00000025").write_text("a note of mine")
    assert load_newest(saved, TASK).path == checkpoints / "step-00000020"
    remove_waiting(checkpoints)
    for step in (30, 10):  # with and without a newer one
        save(saved, states[step], RECIPE, store, POSITION)
    kept = ("step-00000010", "step-00000020", "step-00000025", "step-00000030")
    assert names(saved) == sorted((*OTHERS, *kept))
    for name in OTHERS:
        files = {str(path.relative_to(checkpoints / name)) for path in (checkpoints / name).rglob("*.*")}
        assert files == {*FILES, CARD}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_and_named_and_the_checkpoint_before_is_taken(saved, capsys, name):
    damaged = saved / "checkpoints" / "step-00000020"
    flip(damaged / name)
    assert load_newest(saved, TASK).progress.step == 10
    assert capsys.readouterr().err == (
        f"bert-horovod: the checkpoint {damaged} is damaged ({name}); taking the one before\n"
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_or_cut_short_is_found_and_named(saved, capsys, name):
    for step in (10, 20):
        path = saved / "checkpoints" / f"step-000000{step}" / name
        if step == 20:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamagedData, match=r"all checkpoints in .*checkpoints are damaged; remove them to start from"):
        load_newest(saved, TASK)
    assert capsys.readouterr().err.count(f"is damaged ({name})") == 2


def test_any_flipped_byte_of_the_hashes_is_found(saved):
    path = saved / "checkpoints" / "step-00000020" / "training" / "hashes.json"
    for place in range(0, path.stat().st_size, 7):
        flip(path, place)
        assert load_newest(saved, TASK).progress.step == 10
        flip(path, place)
    assert load_newest(saved, TASK).progress.step == 20


def test_a_checkpoint_that_its_run_removes_while_it_is_read_gives_way_to_the_next_newest(saved, capsys):
    read: list[str] = []

    def read_slowly(whole: OpenCheckpoint) -> dict[str, np.ndarray]:
        read.append(whole.directory.name)
        if len(read) == 1:
            shutil.rmtree(whole.directory)
        return whole.reader.read().parameters

    newest, before = paths(saved)[-1].name, paths(saved)[-2].name
    assert find_checkpoint(saved).whole(read_slowly).keys() == pretraining_shapes(RECIPE.model, True).keys()
    assert read == [newest, before]
    assert "damaged" not in capsys.readouterr().err


def test_a_checkpoint_that_is_removed_while_its_hashes_are_compared_is_not_called_damaged(saved, monkeypatch, capsys):
    newest, before = paths(saved)[-1], paths(saved)[-2]
    damaged_files = checkpoint.damaged_files

    def prune_first(path: Path) -> list[str]:
        if path == newest:
            shutil.rmtree(newest)
        return damaged_files(path)

    monkeypatch.setattr(checkpoint, "damaged_files", prune_first)
    assert find_checkpoint(saved).whole(lambda whole: whole.directory) == before
    assert capsys.readouterr().err == ""


def test_a_checkpoint_that_was_named_itself_and_is_removed_is_told(saved):
    named = paths(saved)[-1]

    def remove(whole: OpenCheckpoint) -> None:
        shutil.rmtree(named)
        whole.reader.read()

    with pytest.raises(UserError, match=f"--checkpoint {named} was removed while it was read; give another"):
        find_checkpoint(named).whole(remove)


def test_weights_have_one_hash_with_and_without_the_runs_own_record(saved):
    newest = paths(saved)[-1]
    recorded = find_checkpoint(newest).weights_hash()
    assert recorded != find_checkpoint(paths(saved)[-2]).weights_hash()
    (newest / HASHES).unlink()
    assert find_checkpoint(newest).weights_hash() == recorded


def test_a_checkpoint_tells_the_pair_and_the_sequence_length_of_the_phase_that_it_was_saved_in(tmp_path, states, store):
    first, second = Phase(sequence_length=16), Phase(sequence_length=32)
    recipe = dataclasses.replace(RECIPE, phase=(first, second), objective=Objective(pair="sentence_order"))
    for step, phase in ((10, 0), (20, 1)):
        path = save(tmp_path, states[step], recipe, store, POSITION | {"phase": phase})
        assert recorded_length(path) == recipe.phase[phase].sequence_length
        assert recorded_pair(path) == "sentence_order"


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"recipe": {"phase": []}, "position": {"phase": 0}}'])
def test_a_directory_without_a_whole_state_tells_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "training").mkdir()
        (tmp_path / "training" / "state.json").write_text(text, encoding="utf-8")
    assert recorded_length(tmp_path) is None
    assert recorded_pair(tmp_path) is None


def test_the_link_model_leads_to_the_newest_checkpoint_also_when_the_run_is_moved(saved, states, store):
    link = saved / "model"
    assert os.readlink(link) == "checkpoints/step-00000020"
    save(saved, states[30], RECIPE, store, POSITION)
    moved = saved.rename(saved.with_name("moved"))
    assert (moved / "model").resolve() == moved / "checkpoints" / "step-00000030"
    assert_same_bits(read_directory(moved / "model").parameters, arrays(states[30]))
    assert not list(moved.glob(".model*"))


def test_a_kill_between_checkpoint_and_link_leaves_the_link_on_a_whole_checkpoint(saved, states, store, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "symlink", killed)
    with pytest.raises(KeyboardInterrupt):
        save(saved, states[30], RECIPE, store, POSITION)
    assert names(saved) == ["step-00000010", "step-00000020", "step-00000030"]
    assert_same_bits(read_directory(saved / "model").parameters, arrays(states[20]))


@pytest.mark.parametrize("own", ["file", "directory"])
def test_what_a_user_puts_in_place_of_the_link_stays(tmp_path, states, store, own):
    (tmp_path / "model").mkdir() if own == "directory" else (tmp_path / "model").write_text("mine")
    save(tmp_path, states[10], RECIPE, store, POSITION)
    assert not (tmp_path / "model").is_symlink()
    assert names(tmp_path) == ["step-00000010"]
    assert not list(tmp_path.glob(".model*"))


def test_an_edited_model_card_is_no_damage(saved, capsys):
    (saved / "checkpoints" / "step-00000020" / CARD).write_text("mine", encoding="utf-8")
    assert load_newest(saved, TASK).progress.step == 20
    assert capsys.readouterr().err == ""


RECORD = {"metric": "f1", "score": 0.5, "step": 3, "evaluations_since": 0, "last_step": 3, "ended": False}


def test_a_whole_record_is_read_while_its_checkpoint_is_there(tmp_path):
    (tmp_path / BEST).write_text(json.dumps(RECORD))
    assert best_record(tmp_path) is None
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert best_record(tmp_path) == Best(**RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps(RECORD | {"more": 1}),
        json.dumps(RECORD | {"score": "0.5"}),
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path, text):
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    (tmp_path / BEST).write_text(text)
    assert best_record(tmp_path) is None
