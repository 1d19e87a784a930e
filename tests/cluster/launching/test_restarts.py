"""bert-horovod launch --restarts: what is started again, on which hosts, and what is left behind."""

import importlib.util
import math
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.launches import LAUNCH, QUICK, launched
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment
from tests.toy_runs import metrics, pretrain_arguments

pytestmark = [pytest.mark.full, pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")]
STEPS, CHECKPOINT_STEPS = 250, 20
LOST = (
    "bert-horovod: error: rank 1 on node2 gave no sign of life; of those that noticed it rank 0 on node1 ended first, "
    "with exit code 3"
)


def two_runs(tmp_path, store, steps: int, **execution) -> tuple[list[Path], list[list[str]]]:
    """The directories of a run that is disturbed and of one that is not, and their flags."""
    runs = [tmp_path / "disturbed", tmp_path / "undisturbed"]
    settings = {"phase": {"steps": steps}, "execution": QUICK | execution}
    return runs, [pretrain_arguments(tmp_path, store, run, **settings) for run in runs]


def assert_same_losses(disturbed: Path, undisturbed: Path) -> None:
    for a, b in zip(metrics(disturbed), metrics(undisturbed), strict=True):
        assert a["step"] == b["step"]
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-3), a["step"]


@pytest.mark.slow
def test_a_run_that_fails_twice_ends_as_one_that_did_not(start_cluster, store, tmp_path):
    """The other host's rank is stopped, then that host vanishes; each time a watchdog ends the run."""
    box = start_cluster(hosts=2)
    runs, arguments = two_runs(tmp_path, store, STEPS, checkpoint_steps=CHECKPOINT_STEPS, stall_s=20.0)
    words = [*LAUNCH, "--restarts", "2", "-hostfile", str(box.hostfile), "--", "pretrain", *arguments[0]]
    with launched(words, tmp_path, str(runs[0]), partial(box.start, "node1", env=clean_environment())) as run:
        run.await_output(f"step {CHECKPOINT_STEPS + 1}/")
        stopped = run.stop(1)
        run.await_error("restart 1 of 2 in")
        run.await_output("resuming from", f"/{STEPS} ")
        assert not Path(f"/proc/{stopped}").exists()
        box.cut("node2")
        run.await_error("restart 2 of 2 in")
        undisturbed = subprocess.Popen([*LAUNCH[:3], "pretrain", *arguments[1]], env=clean_environment())
        output, errors = run.end()
    own = [line for line in errors.splitlines() if line.startswith(("bert-horovod: ", "rank 1 on", "so rank"))]
    stalled = [line for line in own if "error: stalled: rank 0 on node1 has been at one thing for " in line]
    silent = [line for line in own if line.startswith("rank 1 on node2: gives no sign of life: stopped, dead or cut")]
    assert (len(stalled), len(silent)) == (2, 2), errors
    assert [line for line in own if line not in stalled + silent] == [
        "so rank 0 waits for rank 1",
        LOST,
        "bert-horovod: restart 1 of 2 in 3 s",
        "bert-horovod: restart 1 of 2 with 2 rank(s) on node1:1, node2:1",
        "so rank 0 waits for rank 1",
        LOST,
        "bert-horovod: restart 2 of 2 in 6 s",
        "bert-horovod: leaving out node2: ssh: it cannot be reached",
        "bert-horovod: restart 2 of 2 with 1 rank(s) on node1:1",
    ]
    assert [line for line in output.splitlines() if "rank(s)" in line] == [
        f"world: {ranks} rank(s); XLA off" for ranks in (2, 2, 1)
    ]
    assert undisturbed.wait(PATIENCE_S) == 0
    assert_same_losses(*runs)


# As sitecustomize.py: a bit flips on rank 1 of the first attempt after step 6.
FLIP = """
import os, pathlib

mark = pathlib.Path(__file__).with_name("flipped")
if os.environ.get("HOROVOD_RANK") == "1" and not mark.exists():
    from tests.training.faulty_ranks import flip_a_bit_after

    flip_a_bit_after(6)
    mark.touch()
"""


@pytest.mark.slow
def test_a_run_in_which_a_bit_flips_is_restarted_and_ends_as_one_that_was_not_disturbed(store, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(FLIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    runs, arguments = two_runs(tmp_path, store, 12, micro_batch=8, checkpoint_steps=5, consistency_steps=1)
    words = [*LAUNCH, "-np", "2", "--restarts", "1", "--", "pretrain", *arguments[0]]
    with launched(words, tmp_path, str(runs[0])) as run:
        output, errors = run.end()
    assert (tmp_path / "flipped").exists()
    flipped = "step 6: ranks no longer hold the same state: bert.encoder.layer.0.output.dense.weight of rank 1 is not"
    assert errors.count(f"bert-horovod: error: {flipped}") == 1, errors
    assert "the same command resumes from it\n" in errors
    assert "restart 1 of 1 with 2 rank(s) on localhost:2\n" in errors
    assert "Traceback" not in errors
    assert f"resuming from {runs[0] / 'checkpoints' / 'step-00000005'}\n" in output
    undisturbed = subprocess.run([*LAUNCH[:3], "pretrain", *arguments[1]], env=clean_environment(), check=False)
    assert undisturbed.returncode == 0
    assert [line["step"] for line in metrics(runs[0])] == list(range(1, 13))
    assert_same_losses(*runs)


# As sitecustomize.py: rank 1 of the first attempt computes wrongly from step 7 on.
WRONG = """
import os, pathlib

mark = pathlib.Path(__file__).with_name("wrong")
if os.environ.get("HOROVOD_RANK") == "1" and not mark.exists():
    from tests.training.faulty_ranks import wrong_device

    held = wrong_device("tile", 7, 1000)
    held.__enter__()
    mark.touch()
"""


@pytest.mark.slow
def test_the_host_of_a_device_that_computes_wrongly_is_left_out(start_cluster, store, tmp_path, monkeypatch):
    box = start_cluster(hosts=3)
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    often = {"checkpoint_steps": 5, "replay_steps": 4, "keep_checkpoints": 1}
    runs, arguments = two_runs(tmp_path, store, 12, micro_batch=4, **often)
    words = [*LAUNCH, "--restarts", "1", "-hostfile", str(box.hostfile), "--", "pretrain", *arguments[0]]
    with launched(words, tmp_path, str(runs[0]), partial(box.start, "node1", env=clean_environment())) as run:
        output, errors = run.end()
    assert errors.count("bert-horovod: error: step 8: rank 1 on node2 computes wrongly: ") == 1, errors
    assert "leaving out node2: a rank there computed wrongly\n" in errors
    assert "restart 1 of 1 with 2 rank(s) on node1:1, node3:1\n" in errors
    assert f"resuming from {runs[0] / 'checkpoints' / 'step-00000005'}\n" in output
    undisturbed = subprocess.run([*LAUNCH[:3], "pretrain", *arguments[1]], env=clean_environment(), check=False)
    assert undisturbed.returncode == 0
    assert_same_losses(*runs)


@pytest.mark.slow
def test_a_run_that_diverges_is_not_restarted(store, tmp_path):
    sections = {"optimizer": {"weight_decay": 1e30}, "phase": {"steps": 4}, "execution": QUICK}
    arguments = pretrain_arguments(tmp_path, store, tmp_path / "run", **sections)
    words = [*LAUNCH, "-np", "2", "--restarts", "1", "--", "pretrain", *arguments]
    with launched(words, tmp_path, str(tmp_path / "run")) as run:
        _, errors = run.end(code=2)
    assert "not finite, so no checkpoint is written" in errors
    assert "restart 1" not in errors


def test_rank_0_moves_only_to_a_host_that_sees_the_run(start_cluster, tmp_path):
    box = start_cluster(hosts=3)
    (tmp_path / "run").mkdir()
    assert box.run("node2", ["mount", "-t", "tmpfs", "tmpfs", tmp_path]).returncode == 0
    program = (
        "import sys; from pathlib import Path; from bert_horovod.cluster.launching.restarts import LaunchPlan, well\n"
    )
    program += "hosts, mirror = dict.fromkeys(sys.argv[3:], 1), bool(sys.argv[2])\n"
    program += "plan = LaunchPlan(1, hosts, [], Path(sys.argv[1], 'stop'), has_mirror=mirror)\n"
    program += "print(*well(plan, sys.argv[3]), sep='\\n')"

    def left(*hosts: str, mirror: str = "") -> tuple[str, str]:
        words = [sys.executable, "-c", program, tmp_path / "run", mirror, *hosts]
        done = box.run("node1", words, env=clean_environment(), cwd=PROJECT)
        return tuple(done.stdout.splitlines())

    assert left("nowhere", "node2", "node3")[0] == "{'node3': 1, 'node2': 1}"
    hosts, messages = left("nowhere", "node2")
    assert hosts == "{}"
    assert f"leaving out node2: no {tmp_path / 'run'} there, as rank 0 needs" in messages
    hosts, messages = left("nowhere", "node2", mirror="yes")
    assert hosts == "{'node2': 1}"
    assert "as rank 0 needs" not in messages


UNREACHABLE = ["-H", "no-such-host.invalid:1", "--", "verify", "--data_dir"]


def test_where_no_host_is_left_the_failure_stands(tmp_path):
    with launched([*LAUNCH, "--restarts", "2", *UNREACHABLE, str(tmp_path)], tmp_path, str(tmp_path)) as run:
        _, errors = run.end(code=1)
    assert "restart 1 of 2 in 3 s\n" in errors
    assert "leaving out no-such-host.invalid: ssh: its name is not resolved\n" in errors
    assert errors.endswith("no host is left to restart on; see what mends them: bert-horovod doctor\n")


def test_a_signal_between_attempts_ends_the_launch(tmp_path):
    with launched([*LAUNCH, "--restarts", "2", *UNREACHABLE, str(tmp_path)], tmp_path, str(tmp_path)) as run:
        run.await_error("restart 1 of 2 in 3 s")
        run.signal(signal.SIGUSR1)
        _, errors = run.end(code=128 + signal.SIGUSR1)
    assert errors.endswith("SIGUSR1: not restarted; no rank runs, and the same command resumes\n")
