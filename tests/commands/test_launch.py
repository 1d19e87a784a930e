"""bert-horovod launch: what is refused before anything is started, and where hosts come from."""

import argparse
import socket

import pytest

from bert_horovod.commands.launch import _has_mirror
from tests.horovod_runs import run_command

pytestmark = pytest.mark.full

PRETRAIN = ["--", "pretrain", "--recipe", "none.toml", "--data_dir", "none", "--output_dir", "none"]
NO_INTERFACE = "this host has no network interface 'nosuch0'; it has lo"
TOO_MANY = "-np 9 is more than the slots of the hosts, 4 on 2"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-np", "2"], "expected a command to run"),
        (["-np", "2", "--", "launch", "-np", "2"], "expected a command to run"),
        (["-np", "0", *PRETRAIN], "-np 0: expected at least 1"),
        (["-np", "two", *PRETRAIN], "invalid int value: 'two'"),
        (["-np", "99999999999", *PRETRAIN], "expected at most 4096 ranks on a host"),
        (["-np", "2", "--", "pretrain", "--ouput_dir", "x"], "--ouput_dir: did you mean --output_dir?"),
        (PRETRAIN, "expected -np N for ranks on this host, or hosts"),
        (["-np", "2", "-hostfile", "none", *PRETRAIN], "cannot read the hostfile none"),
        (["--discover", "exit 3", *PRETRAIN], "--discover exit 3: exit code 3, no word; expected lines `host slots=N`"),
        (["--discover", "echo a:1", "-H", "a:1", *PRETRAIN], "--discover and -hostfile or -H name the hosts twice"),
        (
            ["-np", "1", "--wait_for_hosts", "soon", *PRETRAIN],
            "--wait_for_hosts soon: expected a number with s, m",
        ),
        (["-H", "a", *PRETRAIN], "'a' is not of the form host:slots"),
        (["-H", "a:1", "-hostfile", "none", *PRETRAIN], "not allowed with argument"),
        (["-np", "2", *PRETRAIN, "--nonsense"], "unrecognized arguments: --nonsense"),
        (["-np", "2", "--", "pretrain"], "the following arguments are required: --recipe"),
        (["-np", "9", "-H", "a:2,b:2", *PRETRAIN], TOO_MANY),
        (["-np", "1", "--network_interfaces", "lo,nosuch0", *PRETRAIN], NO_INTERFACE),
    ],
)
def test_a_mistake_is_seen_before_anything_is_started(flags, message):
    if message in (TOO_MANY, NO_INTERFACE):
        pytest.importorskip("horovod")
    done = run_command("launch", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("recipe", "overrides", "mirror"),
    [
        ("", [], False),
        ("[execution]\nmirror = 's3://bucket/a'\n", [], True),
        ("", ["execution.mirror=s3://bucket/a"], True),
        ("[execution]\nmirror = 's3://bucket/a'\n", ["execution.mirror=''"], False),
        (None, ["execution.micro_batch=8"], False),
    ],
)
def test_a_mirror_is_known_before_the_ranks_start(tmp_path, recipe, overrides, mirror):
    path = tmp_path / "recipe.toml"
    if recipe is not None:
        path.write_text(recipe)
    assert _has_mirror(argparse.Namespace(recipe=str(path), overrides=overrides)) == mirror


def test_in_a_schedulers_job_its_hosts_are_taken():
    pytest.importorskip("horovod")
    done = run_command("launch", "-np", "9", *PRETRAIN, SLURM_JOB_NODELIST="node[1-2]", SLURM_NTASKS_PER_NODE="2")
    assert done.stderr.startswith("2 hosts, 4 slots, from SLURM_JOB_NODELIST, SLURM_NTASKS_PER_NODE\n")
    assert TOO_MANY in done.stderr
    assert "if the variable is left over from another job, unset it" in done.stderr


def test_a_job_that_this_host_is_not_of_gets_a_hint():
    pytest.importorskip("horovod")
    flags = ["--network_interfaces", "nosuch0", *PRETRAIN]  # nothing is started
    done = run_command("launch", *flags, SLURM_JOB_NODELIST="node[1-2]")
    assert f"warning: this host, {socket.gethostname()}, is not among them; if the variable is left over" in done.stderr
    here = run_command("launch", *flags, SLURM_JOB_NODELIST=f"{socket.gethostname()},node2")
    assert "left over" not in here.stderr
