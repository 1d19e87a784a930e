"""Checkpoints are written in the background, tried again when that fails, and pruned."""

import contextlib
import dataclasses
import io
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.corpus.store import Store
from bert_horovod.errors import RunError
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Execution
from bert_horovod.runs import saving
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.saving import Saver
from bert_horovod.runs.state import Progress
from bert_horovod.runs.status_files import Sign, read_sign
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.tasks.text_head import Reranking
from tests.horovod_runs import PATIENCE_S
from tests.rights import small_file_system
from tests.runs.test_checkpoint import POSITION, random_state
from tests.toy_runs import metrics, new_state, newest, save, train
from tests.toys import toy_recipe

TASK = Pretraining(pairs=True)

RECIPE = toy_recipe()


def with_execution(**settings) -> Recipe:
    return dataclasses.replace(RECIPE, execution=dataclasses.replace(Execution(), **settings))


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in (output_dir / "checkpoints").iterdir())


@pytest.fixture
def small_disk(tmp_path, store) -> Iterator[Path]:
    """A file system with room for one checkpoint and a half."""
    save(tmp_path / "elsewhere", random_state(10), RECIPE, store, POSITION)
    size = sum(path.stat().st_size for path in (tmp_path / "elsewhere").rglob("*") if path.is_file())
    with small_file_system(tmp_path / "disk", size * 3 // 2) as disk:
        yield disk


def saver(output_dir: Path, store: Store, recipe: Recipe = RECIPE) -> tuple[Saver, list[str]]:
    messages: list[str] = []
    return Saver(random_state(0), output_dir, recipe, TASK, StoreDataset(store, recipe), messages.append), messages


def save_until_it_fails(writer: Saver, *steps: int) -> None:
    """Save these steps, and wait until the last of them is to be tried again."""
    for step in steps:
        writer.save(random_state(step), POSITION)
    while not writer.retry_due():
        time.sleep(0.02)


def test_what_is_written_is_the_state_when_it_was_saved(tmp_path, store):
    state, unchanged = random_state(10), random_state(10)
    writer, messages = saver(tmp_path, store)
    writer.save(state, POSITION)
    state.progress.step = 11
    for variable in [*state.parameters.values(), *state.slots["m"].values()]:
        variable.assign_add(np.ones(variable.shape, np.float32))
    writer.finish(lambda: None)
    checkpoint = load_newest(tmp_path, TASK)
    assert checkpoint.progress.step == 10
    for name, array in checkpoint.parameters.items():
        assert array.tobytes() == unchanged.parameters[name].numpy().tobytes()
        assert checkpoint.slots["m"][name].tobytes() == unchanged.slots["m"][name].numpy().tobytes()
    assert messages == []


def test_no_checkpoint_is_whole_before_what_must_come_before_it(tmp_path, store, monkeypatch):
    monkeypatch.setattr(saving, "RETRY_S", 0.1)
    failures = iter([RunError("no room for lines"), None])

    def before() -> None:
        if failure := next(failures):
            raise failure

    writer, messages = saver(tmp_path, store)
    writer.before = before
    save_until_it_fails(writer, 5)
    assert not (tmp_path / "checkpoints").exists()
    writer.again()
    writer.finish(lambda: None)
    assert names(tmp_path) == ["step-00000005"]
    assert messages == ["warning: no room for lines. The run goes on, and tries again in 0 s"]


@pytest.fixture
def may_write(monkeypatch) -> threading.Event:
    """Nothing is written before it is set."""
    event, write = threading.Event(), saving.write_checkpoint_files

    def late(*arguments):
        assert event.wait(PATIENCE_S)
        return write(*arguments)

    monkeypatch.setattr(saving, "write_checkpoint_files", late)
    return event


def test_a_run_that_ends_by_an_error_leaves_whole_what_it_was_saving(tmp_path, store, may_write):
    writer, _ = saver(tmp_path, store)
    writer.save(random_state(5), POSITION)
    threading.Timer(0.2, may_write.set).start()
    writer.close()
    assert names(tmp_path) == ["step-00000005"]


def test_an_earlier_checkpoint_that_cannot_be_removed_fails_no_save(tmp_path, store):
    recipe = with_execution(keep_checkpoints=1)
    save(tmp_path, random_state(10), recipe, store, POSITION)
    (tmp_path / "checkpoints" / ".step-00000010.partial").touch()  # in the way of its removal
    save(tmp_path, random_state(20), recipe, store, POSITION)
    assert names(tmp_path) == [".step-00000010.partial", "step-00000010", "step-00000020"]


@pytest.mark.full
def test_without_room_the_run_goes_on_keeps_the_earlier_one_and_tries_again(small_disk, store, monkeypatch):
    monkeypatch.setattr(saving, "RETRY_S", 0.1)
    writer, messages = saver(small_disk, store)
    save_until_it_fails(writer, 10, 20)
    (warning,) = messages
    assert "No space left on device" in warning
    assert "earlier checkpoints are whole: make room. The run goes on, and tries again in 0 s" in warning
    assert names(small_disk) == ["step-00000010"]
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    writer.save(random_state(21), POSITION)
    writer.finish(lambda: None)
    assert names(small_disk) == ["step-00000010", "step-00000021"]
    assert len(messages) == 1
    assert not writer.retry_due()


@pytest.mark.full
def test_too_long_without_a_checkpoint_stops_the_run(small_disk, store, monkeypatch):
    monkeypatch.setattr(saving, "RETRY_S", 0.1)
    writer, messages = saver(small_disk, store)
    save_until_it_fails(writer, 10, 20)
    assert messages
    writer._last_good -= saving.MAX_UNSAVED_HOURS * 3600  # so long ago was the last good one
    with pytest.raises(RunError, match=r"no new checkpoint for more than 6 hours"):
        writer.finish(lambda: None)
    assert load_newest(small_disk, TASK).progress.step == 10


@pytest.mark.full
def test_a_run_that_was_asked_to_stop_does_not_wait_for_room(small_disk, store):
    Sign(10, 30, "saving", 0.0, 0.0, 0.0, 1).write(small_disk)
    writer, messages = saver(small_disk, store)
    for step in (10, 20):
        writer.save(random_state(step), POSITION)
    with pytest.raises(RunError, match=r"cannot write .*step-00000020: No space left .*: make room and run the same"):
        writer.finish(lambda: None, lambda: True)
    assert not messages
    assert load_newest(small_disk, TASK).progress.step == 10
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
    for doing in ("saving the checkpoint", "end"):
        Sign(20, 30, doing, 0.0, 0.0, 1.0, 1).write(small_disk)
        assert read_sign(small_disk).doing == doing  # over the sign before, which has the room


FULL = (
    "warning: cannot write the checkpoint",
    "metrics.jsonl: No space left on device; its lines are kept until that works",
)


def fill(disk: Path, log: Path, shown: io.StringIO) -> None:
    """When a run has begun, take all the room of its disk; when the run has said so, make plenty."""
    end = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size):
        time.sleep(0.01)
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
    while not all(text in shown.getvalue() for text in FULL) and time.monotonic() < end:
        time.sleep(0.01)
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)


@pytest.mark.full
def test_a_run_whose_disk_fills_up_trains_on_and_saves_when_there_is_room(small_disk, store, monkeypatch):
    monkeypatch.setattr(saving, "RETRY_S", 0.2)
    output_dir, shown = small_disk / "run", io.StringIO()
    filling = threading.Thread(target=fill, args=(small_disk, output_dir / "metrics.jsonl", shown))
    filling.start()
    with contextlib.redirect_stdout(shown):
        train(store, output_dir, phase={"steps": 60}, execution={"checkpoint_steps": 10})
    filling.join()
    for text in FULL:
        assert text in shown.getvalue()
    assert load_newest(output_dir, TASK).progress.step == 60
    assert [line["step"] for line in metrics(output_dir)] == list(range(1, 61))


def test_a_checkpoint_has_the_task_as_it_was_when_it_was_taken(store, tmp_path, may_write):
    state, task = random_state(10), Counted(pairs=True)
    saver = Saver(state, tmp_path, RECIPE, task, StoreDataset(store, RECIPE), print)
    saver.save(state, POSITION)
    object.__setattr__(task, "evaluations", 1)  # as an evaluation changes a threshold
    may_write.set()
    saver.finish(lambda: None)
    saver.close()
    assert json.loads((newest(tmp_path) / "config.json").read_text())["evaluations"] == 0


@pytest.mark.parametrize(("task", "length"), [(TASK, 32), (Reranking("label", ("query", "passage")), 16)])
def test_the_tokenizer_has_the_length_of_rows_of_a_fine_tuning_else_the_models(tmp_path, store, task, length):
    recipe = toy_recipe(phase={"sequence_length": 16})
    shapes = task.parameters(recipe.model).items()
    state = new_state({name: np.zeros(shape, np.float32) for name, shape in shapes}, Progress(1))
    snapshot = saving.take_snapshot(state, saving.buffers_for(state), recipe, store.hash, POSITION)
    written = saving.write_checkpoint_files(tmp_path, snapshot, recipe, task, StoreDataset(store, recipe))
    assert HuggingFace(written).max_length == length


class Counted(Pretraining):
    evaluations = 0

    def configuration(self, model):
        return super().configuration(model) | {"evaluations": self.evaluations}


def test_the_checkpoint_of_the_last_good_check_is_kept_and_later_ones_can_be_put_aside(tmp_path, store):
    recipe = with_execution(keep_checkpoints=1)
    kept = {2: [2], 4: [2, 4], 6: [2, 6], 8: [6, 8]}
    for step, checked in [(2, 2), (4, 2), (6, 2), (8, 7)]:
        state = random_state(step)
        state.progress.checked = checked
        save(tmp_path, state, recipe, store, POSITION)
        assert names(tmp_path) == [f"step-{kept_step:08d}" for kept_step in kept[step]]
    for after, left in ((7, "step-00000006"), (5, None)):
        renamed, newest = saving.put_aside(tmp_path, after)
        assert [path.is_dir() for path in renamed] == [True]
        assert left == (newest and newest.name)
        assert (tmp_path / "model").is_symlink() == bool(left)
    assert names(tmp_path) == ["suspect-step-00000006", "suspect-step-00000008"]
