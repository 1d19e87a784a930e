"""--stop_before: when a job of SLURM ends, and what is refused.

pretrain --stop_when: a command that says when a host will be taken away. Over several hosts: test_spot.py.
"""

import os
import stat
import time
from types import SimpleNamespace

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.cluster.launching import deadline
from bert_horovod.cluster.launching.deadline import stop_time
from bert_horovod.collectives.launched import ATTEMPT
from bert_horovod.errors import RunError, UserError
from bert_horovod.runtime.stopping import LEAVING
from tests.toy_runs import metrics, pretrain_arguments


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in ("SLURM_JOB_END_TIME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("before", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("0.5m", 30)])
def test_the_time_is_so_long_before_the_jobs_end(monkeypatch, before, seconds):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 7200))
    assert stop_time(before) == int(os.environ["SLURM_JOB_END_TIME"]) - seconds


def test_an_older_slurm_is_asked(monkeypatch, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$*" = "--noheader --jobs 12 --format %e" ] && echo 2099-01-02T03:04:05\n')
    squeue.chmod(squeue.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert stop_time("1h") == time.mktime((2099, 1, 2, 2, 4, 5, 0, 0, -1))
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    with pytest.raises(RunError, match=r"squeue does not tell when job 13 ends"):
        stop_time("1h")


@pytest.mark.parametrize(
    ("before", "left_s", "message"),
    [
        *((before, None, r"expected a number with s, m or h") for before in ("", "10", "m", "-5m", "1d", "10 m")),
        ("10m", None, r"found no SLURM_JOB_END_TIME and no SLURM_JOB_ID"),
        ("10m", 300, r"the job ends in \d+ s, before the run could begin"),
    ],
)
def test_what_is_no_duration_or_not_in_a_job_or_too_late_is_refused(monkeypatch, before, left_s, message):
    if left_s:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + left_s))
    with pytest.raises(UserError, match=message):
        stop_time(before)


def test_a_run_saves_and_stops_before_the_jobs_end(store, tmp_path, monkeypatch):
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 1_000_000})
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3 * 3600))

    def clock() -> float:  # in the job's last hour once a step is logged, however long that takes here
        logged = (output_dir / "metrics.jsonl").exists() and metrics(output_dir)
        return time.time() + (2 * 3600 if logged else 0)

    monkeypatch.setattr("bert_horovod.training.run.time", SimpleNamespace(time=clock, monotonic=time.monotonic))
    assert dispatch(parse(["bert-horovod", "pretrain", *arguments, "--stop_before", "1h"])) == 0
    (checkpoint,) = (output_dir / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{metrics(output_dir)[-1]['step']:08d}"


@pytest.mark.parametrize(("attempt", "code"), [(None, 0), ("id", LEAVING)], ids=["alone", "under launch"])
def test_a_run_saves_and_stops_once_the_command_ends_with_0(store, tmp_path, monkeypatch, attempt, code):
    if attempt:
        monkeypatch.setenv(ATTEMPT, attempt)
    monkeypatch.setattr(deadline, "POLL_S", 0.05)
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 1_000_000})
    words = ["bert-horovod", "pretrain", *arguments, "--stop_when", f"grep -q loss '{output_dir}/metrics.jsonl'"]
    assert dispatch(parse(words)) == code
    (checkpoint,) = (output_dir / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{metrics(output_dir)[-1]['step']:08d}"


def test_a_command_that_cannot_be_run_is_refused():
    with pytest.raises(UserError, match=r"--stop_when no-such-command: the shell cannot run it \(exit code 127\)"):
        deadline.watch("no-such-command", lambda: None)
