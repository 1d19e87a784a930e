"""A run that was stopped in order and started again equals one that was not stopped."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_horovod.errors import RunError
from bert_horovod.runs import saving
from bert_horovod.runtime.stopping import STOP_SIGNALS
from bert_horovod.training.run import Run
from tests.horovod_runs import PATIENCE_S, PROJECT
from tests.toy_runs import (
    assert_same_files,
    at_step,
    incidents,
    losses,
    metrics,
    newest,
    pretrain_arguments,
    train,
    train_rank,
    train_recipe,
    training_state,
)
from tests.toys import toy_recipe

pytestmark = pytest.mark.full
MODEL = {"num_hidden_layers": 1}
NUMERICS = {"wire": "float16"}
EXECUTION = {"micro_batch": 8, "checkpoint_steps": 5, "evaluate_steps": 5}
RECIPE = toy_recipe(model=MODEL, numerics=NUMERICS, execution=EXECUTION)
OWN_VALUES = (
    *("step", "phase", "epoch", "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "learning_rate"),
    *("gradient_norm", "loss_scale", "skipped_steps"),
)


def own_values(output_dir: Path) -> list[list]:
    return [[line[name] for name in OWN_VALUES] for line in metrics(output_dir)]


@pytest.fixture(scope="module")
def uninterrupted(store, two_ranks, tmp_path_factory) -> Path:
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    two_ranks.run(train_rank, store.path, output_dir, RECIPE)
    return output_dir


@pytest.fixture(scope="module")
def stopped(store, two_ranks, tmp_path_factory) -> Path:
    """The same run, left at step 8."""
    output_dir = tmp_path_factory.mktemp("stopped")
    two_ranks.run(train_rank, store.path, output_dir, RECIPE, max_steps=8)
    return output_dir


def test_resume_is_bit_exact_at_the_same_layout(uninterrupted, stopped, store, two_ranks, tmp_path):
    resumed = tmp_path / "run"
    shutil.copytree(stopped, resumed)
    two_ranks.run(train_rank, store.path, resumed, RECIPE)
    assert own_values(resumed) == own_values(uninterrupted)
    assert_same_files(resumed, uninterrupted)


def test_a_resume_is_exact_where_masks_fall_and_do_not_repeat(store, tmp_path, capsys):
    sections = {
        "model": MODEL,
        "objective": {"pair": "none", "masks": "disjoint"},
        "phase": {"masked_fraction": 0.3, "masked_fraction_end": 0.1, "steps": 5},  # two graphs, one after the other
        "execution": {"checkpoint_steps": 2, "log_steps": 1, "xla": "off"},
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(store, whole, **sections)
    for last in (3, 5):
        train(store, parts, max_steps=last, **sections)
    assert losses(parts) == losses(whole)
    assert (newest(parts) / "model.safetensors").read_bytes() == (newest(whole) / "model.safetensors").read_bytes()
    said = capsys.readouterr().out
    assert "30.0% of the tokens masked, 10.0% at its end" in said
    assert "rows have another number of masked places" in said
    operations = [line["flops_per_s"] * line["step_s"] for line in metrics(whole)]
    assert sorted(operations, reverse=True) == pytest.approx(operations)  # a lower rate has less to do
    assert operations[-1] < 0.95 * operations[0]


@pytest.mark.parametrize("exact", [True, False])
def test_a_resume_that_is_not_exact_says_so_at_the_first_step_that_shows_it(store, tmp_path, exact):
    execution = {"checkpoint_steps": 2, "log_steps": 1}
    train(store, tmp_path, max_steps=4, model=MODEL, execution=execution)
    shutil.rmtree(newest(tmp_path))
    if not exact:
        text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
        for line in metrics(tmp_path)[2:]:
            text = text.replace(f'"loss": {line["loss"]!r}', '"loss": 1.5')
        (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    train(store, tmp_path, max_steps=4, model=MODEL, execution=execution)
    told = incidents(tmp_path)
    assert len(told) == (not exact)
    if not exact:
        assert "exact to rounding only: the loss of step 3 is" in told[0]
        assert "was 1.5 before" in told[0]


def test_resume_with_another_world_size_agrees_to_rounding(uninterrupted, stopped, store, tmp_path):
    resumed = tmp_path / "run"
    shutil.copytree(stopped, resumed)
    train(store, resumed, model=MODEL, numerics=NUMERICS, execution=EXECUTION | {"micro_batch": 32})
    for a, b in zip(metrics(uninterrupted), metrics(resumed), strict=True):
        # The one rank has no float16 wire: 2^-11 of the largest gradient is the rounding here.
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-3), a["step"]


def test_an_early_stop_leaves_the_schedule_alone(uninterrupted, stopped):
    assert own_values(stopped) == own_values(uninterrupted)[:8]


def assert_stopped(output_dir: Path, said: str) -> None:
    assert "asked to stop: saved at step" in said
    step = training_state(output_dir)["progress"]["step"]
    assert newest(output_dir).name == f"step-{step:08d}"
    assert step < 5000


@pytest.mark.parametrize("request_stop", ["stop file", *STOP_SIGNALS])
def test_a_request_to_stop_saves(request_stop, store, tmp_path, capsys):
    output_dir = tmp_path / "run"

    def ask() -> None:
        wait_for_step(output_dir, lambda: None)
        if request_stop == "stop file":
            (output_dir / "stop").touch()
        else:
            os.kill(os.getpid(), request_stop)

    asking = threading.Thread(target=ask)
    asking.start()
    train(store, output_dir, model=MODEL, phase={"steps": 5000})
    asking.join()
    assert_stopped(output_dir, capsys.readouterr().out)


def test_a_run_goes_on_without_its_log_and_saves_when_its_terminal_is_closed(store, tmp_path):
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 5000})
    words = [sys.executable, PROJECT / "run" / "run_pretraining.py", *arguments]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(words, stdout=full, stderr=subprocess.PIPE, text=True, preexec_fn=hear_hang_ups) as run,
    ):
        try:
            wait_for_step(output_dir, run.poll)
            run.send_signal(signal.SIGHUP)
            errors = run.stderr.read()
            assert run.wait(PATIENCE_S) == 0, errors
        finally:
            run.kill()
    step = training_state(output_dir)["progress"]["step"]
    assert step == metrics(output_dir)[-1]["step"] > 0
    assert errors.count("cannot write standard output: No space left on device; the work goes on without it") == 1
    assert "SIGHUP: the run saves after this step and ends" in errors


def hear_hang_ups() -> None:
    """In a new process: as a shell starts it, whoever started these tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_run_whose_directory_is_moved_says_so_and_saves_after_it_is_moved_back(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saving, "RETRY_S", 0)
    output_dir, moved = tmp_path / "run", tmp_path / "moved"
    hooks = (at_step(2, lambda _: output_dir.rename(moved)), at_step(7, lambda _: moved.rename(output_dir)))
    recipe = toy_recipe(phase={"steps": 9}, execution={"checkpoint_steps": 3})
    train_recipe(recipe, store, output_dir, hooks=hooks)
    assert f"cannot write the checkpoint of step 3 to {output_dir}: No such file or directory. Was it moved, " in (
        capsys.readouterr().out
    )
    assert training_state(output_dir)["progress"]["step"] == 9
    assert [line["step"] for line in metrics(output_dir)] == list(range(1, 10))


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_whose_directory_is_gone_ends_with_an_error_and_makes_no_other(store, tmp_path, monkeypatch, taken):
    output_dir = tmp_path / "run"

    def take(_: Run) -> None:
        os.rename(output_dir, tmp_path / "moved")
        if taken:
            output_dir.mkdir()

    monkeypatch.setattr(saving, "MAX_UNSAVED_HOURS", 0.0)
    recipe = toy_recipe(execution={"checkpoint_steps": 2})
    found = "another directory is there" if taken else "No such file or directory"
    with pytest.raises(RunError, match=rf"checkpoint of step 2 to {output_dir}: {found}\. .* Move it back and run the"):
        train_recipe(recipe, store, output_dir, hooks=(at_step(1, take),))
    assert not (output_dir / "checkpoints").exists()


def wait_for_step(output_dir: Path, ended: Callable[[], int | None]) -> None:
    """Wait until a step is logged; `ended` gives the exit code of a run that has ended."""
    end = time.monotonic() + PATIENCE_S
    while not (output_dir / "metrics.jsonl").exists() or not metrics(output_dir):
        assert ended() is None
        assert time.monotonic() < end, f"no step within {PATIENCE_S} s"
        time.sleep(0.05)
