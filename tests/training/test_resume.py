"""A run that was stopped in order and started again equals one that was not stopped."""

import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toy_runs import PROJECT, metrics, newest, pretrain_arguments, training_state

NUMERICS = {"wire": "float16"}
EXECUTION = {"micro_batch": 8, "checkpoint_steps": 5, "evaluate_steps": 5}
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
def uninterrupted(pretrain) -> Path:
    return pretrain(ranks=2, numerics=NUMERICS, execution=EXECUTION)


@pytest.fixture(scope="module")
def stopped(pretrain) -> Path:
    """The same run, left at step 8."""
    return pretrain(ranks=2, flags=("--max_steps", "8"), numerics=NUMERICS, execution=EXECUTION)


def test_resume_is_bit_exact_at_the_same_layout(uninterrupted, stopped, pretrain, tmp_path):
    resumed = tmp_path / "run"
    shutil.copytree(stopped, resumed)
    pretrain(ranks=2, output_dir=resumed, numerics=NUMERICS, execution=EXECUTION)
    assert own_values(resumed) == own_values(uninterrupted)
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        assert (newest(resumed) / file).read_bytes() == (newest(uninterrupted) / file).read_bytes()


def test_resume_with_another_world_size_agrees_to_rounding(uninterrupted, stopped, pretrain, tmp_path):
    resumed = tmp_path / "run"
    shutil.copytree(stopped, resumed)
    pretrain(ranks=1, output_dir=resumed, numerics=NUMERICS, execution=EXECUTION | {"micro_batch": 32})
    for a, b in zip(metrics(uninterrupted), metrics(resumed), strict=True):
        # The one rank has no float16 wire: 2^-11 of the largest gradient is the rounding here.
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-3), a["step"]


def test_an_early_stop_leaves_the_schedule_alone(uninterrupted, stopped):
    assert own_values(stopped) == own_values(uninterrupted)[:8]


def test_a_checkpoint_says_where_the_run_is(stopped):
    state = training_state(stopped)
    assert state["progress"]["step"] == 8
    assert set(state["position"]) == {"phase", "epoch", "row"}


@pytest.mark.parametrize("request_stop", ["stop file", signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_stop_saves_and_leaves_with_success(request_stop, store, tmp_path):
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 5000})
    with subprocess.Popen(
        [sys.executable, PROJECT / "run" / "run_pretraining.py", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as run:
        try:
            wait_for_step(output_dir, run)
            if request_stop == "stop file":
                (output_dir / "stop").touch()
            else:
                run.send_signal(request_stop)
            output, _ = run.communicate(timeout=120)
        finally:
            run.kill()
    assert run.returncode == 0, output
    assert "asked to stop: saved at step" in output
    step = training_state(output_dir)["progress"]["step"]
    assert newest(output_dir).name == f"step-{step:08d}"
    assert step < 5000


def wait_for_step(output_dir: Path, run: subprocess.Popen) -> None:
    for _ in range(600):
        if (output_dir / "metrics.jsonl").exists() and metrics(output_dir):
            return
        assert run.poll() is None, run.stdout.read()
        time.sleep(0.2)
    raise AssertionError("no step within 120 s")
