"""Choices of XLA that lie in the output directory, as on a GPU."""

import json
import os
import pwd
from types import SimpleNamespace

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData
from bert_horovod.runtime import devices
from bert_horovod.training import gpu_choices
from tests.toy_runs import train


@pytest.fixture
def tuned(monkeypatch, tmp_path_factory) -> dict[str, str]:
    """Let the process keep choices as on a GPU: the first start makes one, which no XLA of a CPU would."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    made = {"first.textproto": "version: 3"}
    monkeypatch.setattr(gpu_choices, "has_gpu", lambda: True)
    monkeypatch.setattr(devices, "choices", lambda: dict(made))
    monkeypatch.setattr(devices, "add_choices", made.update)
    return made


@pytest.mark.full
def test_a_resume_reads_what_the_first_start_wrote_and_a_new_run_what_earlier_runs_chose(store, tmp_path, tuned):
    train(store, tmp_path, max_steps=2, execution={"checkpoint_steps": 1})
    content = json.loads((tmp_path / gpu_choices.FILE).read_text(encoding="utf-8"))
    assert content["choices"] == {"first.textproto": "version: 3"}
    tuned.clear()
    tuned["new.textproto"] = "of another program"
    train(store, tmp_path, max_steps=3, execution={"checkpoint_steps": 1})
    assert set(tuned) == {"first.textproto", "new.textproto"}
    assert json.loads((tmp_path / gpu_choices.FILE).read_text(encoding="utf-8"))["choices"] == tuned

    for number, (damage, expected) in enumerate([(None, set(tuned)), ("{", set())]):
        tuned.clear()
        if damage:
            gpu_choices.cache_file().write_text(damage, encoding="utf-8")
        train(store, tmp_path / str(number), max_steps=1)
        assert set(tuned) == expected


def test_earlier_runs_keep_their_newest_choices_and_newest_files(tmp_path, tuned, monkeypatch):
    run = SimpleNamespace(world=World(), job=SimpleNamespace(output_dir=tmp_path))
    monkeypatch.setattr(gpu_choices, "MOST_CHOICES", 3)
    monkeypatch.setattr(gpu_choices, "MOST_FILES", 2)
    for number in range(3):
        monkeypatch.setattr(gpu_choices, "gpu_details", lambda number=number: {"device_name": f"GPU {number}"})
        for name in ("a", "b", "c", "a", "d"):
            tuned.clear()
            tuned[name] = str(number)
            gpu_choices.keep_choices(run)
        os.utime(gpu_choices.cache_file(), (number, number))
    files = sorted(gpu_choices.cache_file().parent.iterdir(), key=lambda path: path.stat().st_mtime)
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    assert [content["made_on"].partition(" with ")[0] for content in contents] == ["GPU 1", "GPU 2"]
    assert [list(content["choices"]) for content in contents] == [["c", "a", "d"]] * 2


def test_a_cache_that_cannot_be_written_or_has_no_home_ends_no_run(tmp_path, tuned, monkeypatch):
    run = SimpleNamespace(world=World(), job=SimpleNamespace(output_dir=tmp_path))
    gpu_choices.cache_file().mkdir(parents=True)  # as little to be replaced as on a full disk
    gpu_choices.keep_choices(run)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a container's user
    tuned["second.textproto"] = "version: 3"
    gpu_choices.keep_choices(run)
    assert json.loads((tmp_path / gpu_choices.FILE).read_text(encoding="utf-8"))["choices"] == tuned


@pytest.mark.slow
def test_choices_of_another_gpu_are_told(store, tmp_path, tuned, monkeypatch, capsys):
    train(store, tmp_path, max_steps=1)
    monkeypatch.setattr(gpu_choices, "gpu_details", lambda: {"device_name": "NVIDIA A100"})
    train(store, tmp_path, max_steps=2)
    said = capsys.readouterr().out
    assert "autotuning.json was made on a GPU with TensorFlow 2." in said
    assert "this is NVIDIA A100 with TensorFlow" in said


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "[]", '{"made_on": 3, "choices": {}}', '{"made_on": "a", "choices": {"b": 3}}'])
def test_a_damaged_file_is_named_with_what_mends_it(store, tmp_path, tuned, text):
    train(store, tmp_path, max_steps=1)
    (tmp_path / gpu_choices.FILE).write_text(text, encoding="utf-8")
    with pytest.raises(DamagedData, match=r"autotuning.json is damaged.*; remove it"):
        train(store, tmp_path, max_steps=2)
