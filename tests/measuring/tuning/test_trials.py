"""Trials in processes of their own, and what is kept of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.measuring import child_command
from bert_horovod.measuring.tuning.learned import Learned
from bert_horovod.measuring.tuning.search import Found
from bert_horovod.measuring.tuning.trials import FAILED, TIME_IS_UP, Trial, run_trial, still_holds
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.runtime.memory_guard import OUT_OF_MEMORY
from tests.horovod_runs import PATIENCE_S, clean_environment
from tests.toys import toy_recipe

SETTINGS = {"micro_batch": 8, "xla": "off"}
GOOD = Trial(step_s=0.5, rows_per_s=64.0, micro_batch_s=0.1, update_s=0.2, memory_bytes=1 << 30, wall_s=9.0)


def words(tmp_path, store, *more: str) -> list[str]:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_to_toml(toy_recipe(execution={"micro_batch": 8})), encoding="utf-8")
    return [
        "bench",
        "throughput",
        "--recipe",
        str(recipe),
        "--data_dir",
        str(store.path),
        "--json",
        "--seconds",
        "0.1",
        *more,
    ]


@pytest.mark.slow
def test_a_step_on_rows_of_a_store_is_timed(tmp_path, store):
    trial = run_trial(words(tmp_path, store), 300, 64 << 30)
    assert (trial.failure, trial.words) == ("", "")
    assert trial.rows_per_s * trial.step_s == pytest.approx(32)
    assert trial.step_s > 3 * trial.micro_batch_s > 0  # four micro-batches, of which two are timed
    assert 100 << 20 < trial.memory_bytes < 4 << 30
    assert trial.wall_s > trial.step_s


def test_a_child_that_needs_more_memory_than_it_may_take_is_an_answer(tmp_path, store):
    trial = run_trial(words(tmp_path, store, "--memory", "150MiB"), 300, 150 << 20)
    assert (trial.failure, trial.limit, trial.step_s) == (OUT_OF_MEMORY, 150 << 20, float("inf"))
    assert "this process holds" in trial.words
    assert not still_holds(trial, 200 << 20, 1)
    assert still_holds(trial, 100 << 20, 1)


def test_a_mistake_is_a_failure_with_its_words(tmp_path, store):
    trial = run_trial(words(tmp_path, store, "--phase", "7"), 300)
    assert trial.failure == FAILED
    assert "--phase 7: the recipe has phases 0 to 0" in trial.words
    assert not still_holds(trial, None, 1)


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("import time; time.sleep(100)", TIME_IS_UP),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", OUT_OF_MEMORY),
        ("raise MemoryError", OUT_OF_MEMORY),
        ("raise SystemExit('tensorflow: OOM when allocating tensor with shape')", OUT_OF_MEMORY),
        ("raise SystemExit('error: rank 1 on node2 ended first, with SIGKILL: by hand, or')", OUT_OF_MEMORY),
        ("raise ValueError", FAILED),
    ],
)
def test_an_end_of_any_kind_is_an_answer(monkeypatch, tmp_path, program, failure):
    (tmp_path / "bert_horovod.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(child_command, "python_settings", lambda: {"PYTHONPATH": str(tmp_path)})
    assert run_trial(["bench"], 1 if failure == TIME_IS_UP else 100).failure == failure


@pytest.mark.full
def test_a_kill_of_this_process_ends_its_child_too(tmp_path):
    (tmp_path / "run").mkdir()
    for name, text in (("run.json", "{}"), ("recipe.toml", recipe_to_toml(toy_recipe()))):
        (tmp_path / "run" / name).write_text(text, encoding="utf-8")
    lasting = ["report", str(tmp_path / "run"), "--watch"]
    program = f"from bert_horovod.measuring.child_command import run_command; run_command({lasting!r})"
    with subprocess.Popen([sys.executable, "-c", program], env=clean_environment()) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        end = time.monotonic() + PATIENCE_S
        while not (child := children.read_text().strip()):
            assert time.monotonic() < end
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    while Path(f"/proc/{child}").exists() and ") Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_took_too_long_is_tried_again_with_more_time():
    late = Trial(failure=TIME_IS_UP, limit=10.0)
    assert still_holds(late, None, 10)
    assert not still_holds(late, None, 11)
    assert still_holds(GOOD, 1, 1)


def test_what_was_measured_is_kept_for_the_same_question_alone(tmp_path):
    answer = Found(SETTINGS, 70.0, 1.1, 3, {"cannot win": 2})
    first = Learned(tmp_path / "index", {"what": "1"})
    first.keep(SETTINGS, 0, 1, GOOD)
    first.keep(SETTINGS, 0, 2, Trial(failure=OUT_OF_MEMORY, limit=5.0))
    first.keep_answer({"memory": None}, answer)
    path = first.path
    first.close()
    again = Learned(tmp_path / "index", {"what": "1"})
    assert again.path == path
    assert again.trial(SETTINGS, 0, 1) == GOOD
    assert again.trial(SETTINGS, 0, 2) == Trial(failure=OUT_OF_MEMORY, limit=5.0)
    assert again.trial(SETTINGS, 1, 1) is None
    assert again.trial(SETTINGS | {"micro_batch": 4}, 0, 1) is None
    assert again.answer({"memory": None}) == answer
    assert again.answer({"memory": "1GiB"}) is None
    again.forget()
    assert (again.trial(SETTINGS, 0, 1), again.answer({"memory": None})) == (None, None)
    other = Learned(tmp_path / "index", {"what": "2"})
    assert other.trial(SETTINGS, 0, 1) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 0, "decided_by": {}}', '{"format": 1, "trials": {"a": 1}}']
)
def test_a_file_that_is_not_whole_is_measured_again(tmp_path, text):
    first = Learned(tmp_path, {})
    first.path.write_text(text)
    first.close()
    again = Learned(tmp_path, {})
    assert again.trial(SETTINGS, 0, 1) is None
    again.keep(SETTINGS, 0, 1, GOOD)
    assert json.loads(again.path.read_text())["format"] == 1


def test_two_that_tune_the_same_are_refused(tmp_path):
    held = Learned(tmp_path, {})
    with pytest.raises(UserError, match="another process tunes the same recipe on this machine"):
        Learned(tmp_path, {})
    held.close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*file/index.*; name another directory with --index_dir"):
        Learned(tmp_path / "file" / "index", {})
