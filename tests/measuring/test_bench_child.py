"""Measurements in processes of their own.

Contestants in rounds.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring import bench_child
from bert_horovod.measuring.bench_child import OutOfMemory, in_turn, run_bench
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from tests.horovod_runs import PATIENCE_S, clean_environment
from tests.toys import TOY_STEP, toy_recipe


@pytest.fixture
def words(tmp_path) -> list[str]:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_to_toml(recipe_from_table(TOY_STEP)), encoding="utf-8")
    return ["bench", "step", "--recipe", str(recipe), "--json", "--steps", "1", "--communication", "on"]


@pytest.mark.full
def test_a_child_that_needs_more_memory_than_it_may_take_is_an_answer(words):
    with pytest.raises(OutOfMemory, match="this process holds"):
        run_bench([*words, "--memory", "150MiB"], 300)


def test_a_mistake_is_the_users(words):
    with pytest.raises(UserError, match="--phase 7: the recipe has phases 0 to 0"):
        run_bench([*words, "--phase", "7"], 300)


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("import time; time.sleep(100)", RunError, "took more than 1 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", OutOfMemory, "out of memory"),
        ("raise MemoryError", OutOfMemory, "out of memory"),
        ("raise SystemExit('tensorflow: OOM when allocating tensor with shape')", OutOfMemory, "out of memory"),
        ("raise SystemExit('rank 1 on node2 ended first, with SIGKILL: by hand, or')", OutOfMemory, "out of memory"),
        ("raise ValueError('no such kernel')", RunError, "ended with 1: (.|\\n)*no such kernel"),
    ],
)
def test_an_end_of_any_kind_is_an_answer(monkeypatch, tmp_path, program, error, message):
    (tmp_path / "bert_horovod.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_child, "python_settings", lambda: {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(error, match=message):
        run_bench(["bench"], 1 if "took" in message else 100)


@pytest.mark.full
def test_a_kill_of_this_process_ends_its_child_too(tmp_path):
    (tmp_path / "run").mkdir()
    for name, text in (("run.json", "{}"), ("recipe.toml", recipe_to_toml(toy_recipe()))):
        (tmp_path / "run" / name).write_text(text, encoding="utf-8")
    lasting = ["report", str(tmp_path / "run"), "--watch"]
    program = f"from bert_horovod.measuring.bench_child import run_bench; run_bench({lasting!r})"
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


def test_contestants_are_measured_in_turn_and_one_that_fails_is_left_out():
    measured, heard = [], []

    def measure(name: str, turn: int) -> int:
        measured.append((name, turn))
        if (name, turn) == ("b", 1):
            raise RunError("a cable was pulled")
        return len(measured)

    figures = in_turn("abc", 3, measure, lambda name, error: heard.append((name, str(error))))
    assert "".join(name for name, _ in measured) == "abcabcac"
    assert figures == {"a": [1, 4, 7], "c": [3, 6, 8]}
    assert heard == [("b", "a cable was pulled")]
