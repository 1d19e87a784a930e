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

from tests.horovod_runs import PROJECT
from tests.toy_runs import metrics, newest, pretrain_arguments, train, train_rank, training_state
from tests.toys import toy_recipe

NUMERICS = {"wire": "float16"}
EXECUTION = {"micro_batch": 8, "checkpoint_steps": 5, "evaluate_steps": 5}
RECIPE = toy_recipe(numerics=NUMERICS, execution=EXECUTION)
OWN_VALUES = (
    "step",
    "phase",
    "epoch",
    "loss",
    "mlm_loss",
    "mlm_accuracy",
    "nsp_loss",
    "nsp_accuracy",
    "learning_rate",
    "gradient_norm",
    "loss_scale",
    "skipped_steps",
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
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        assert (newest(resumed) / file).read_bytes() == (newest(uninterrupted) / file).read_bytes()


def test_resume_with_another_world_size_agrees_to_rounding(uninterrupted, stopped, store, tmp_path):
    resumed = tmp_path / "run"
    shutil.copytree(stopped, resumed)
    train(store, resumed, numerics=NUMERICS, execution=EXECUTION | {"micro_batch": 32})
    for a, b in zip(metrics(uninterrupted), metrics(resumed), strict=True):
        # The one rank has no float16 wire: 2^-11 of the largest gradient is the rounding here.
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-3), a["step"]


def test_an_early_stop_leaves_the_schedule_alone(uninterrupted, stopped):
    assert own_values(stopped) == own_values(uninterrupted)[:8]


def test_a_checkpoint_says_where_the_run_is(stopped):
    state = training_state(stopped)
    assert state["progress"]["step"] == 8
    assert set(state["position"]) == {"phase", "epoch", "row"}


def assert_stopped(output_dir: Path, said: str) -> None:
    assert "asked to stop: saved at step" in said
    step = training_state(output_dir)["progress"]["step"]
    assert newest(output_dir).name == f"step-{step:08d}"
    assert step < 5000


@pytest.mark.parametrize("request_stop", ["stop file", signal.SIGTERM, signal.SIGUSR1])
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
    train(store, output_dir, phase={"steps": 5000})
    asking.join()
    assert_stopped(output_dir, capsys.readouterr().out)


def test_a_process_that_is_asked_to_stop_leaves_with_success(store, tmp_path):
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 5000})
    with subprocess.Popen(
        [sys.executable, PROJECT / "run" / "run_pretraining.py", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as run:
        try:
            wait_for_step(output_dir, run.poll)
            run.send_signal(signal.SIGTERM)
            said, _ = run.communicate(timeout=120)
        finally:
            run.kill()
    assert run.returncode == 0, said
    assert_stopped(output_dir, said)


def wait_for_step(output_dir: Path, ended: Callable[[], int | None]) -> None:
    """Wait until a step is logged; `ended` gives the exit code of a run that has ended."""
    end = time.monotonic() + 120
    while not (output_dir / "metrics.jsonl").exists() or not metrics(output_dir):
        assert ended() is None
        assert time.monotonic() < end, "no step within 120 s"
        time.sleep(0.05)
