"""Trials in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_horovod.measuring import child_command
from bert_horovod.measuring.tuning.trials import FAILED, TIME_IS_UP, run_trial
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.runtime.memory_guard import OUT_OF_MEMORY
from tests.horovod_runs import PATIENCE_S, clean_environment
from tests.toys import toy_recipe


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
    trial = run_trial(words(tmp_path, store), 300)
    assert (trial.failure, trial.words) == ("", "")
    assert trial.rows_per_s * trial.step_s == pytest.approx(32)
    assert trial.step_s > 3 * trial.micro_batch_s > 0  # four micro-batches, of which two are timed
    assert 100 << 20 < trial.memory_bytes < 4 << 30
    assert trial.wall_s > trial.step_s


def test_a_child_that_needs_more_memory_than_it_may_take_is_an_answer(tmp_path, store):
    trial = run_trial(words(tmp_path, store, "--memory", "150MiB"), 300)
    assert (trial.failure, trial.step_s) == (OUT_OF_MEMORY, float("inf"))
    assert "this process holds" in trial.words


def test_a_mistake_is_a_failure_with_its_words(tmp_path, store):
    trial = run_trial(words(tmp_path, store, "--phase", "7"), 300)
    assert trial.failure == FAILED
    assert "--phase 7: the recipe has phases 0 to 0" in trial.words


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
