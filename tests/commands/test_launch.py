"""bert-horovod launch: what is refused before anything is started, and where hosts come from."""

import argparse
import socket

import pytest

from bert_horovod.commands.launch import _has_mirror
from tests.horovod_runs import run_command

pytestmark = pytest.mark.full

PRETRAIN = ["--", "pretrain", "--recipe", "none.toml", "--data_dir", "none", "--output_dir", "none"]
TOO_MANY = "-np 9 is more than the slots of the hosts, 4 on 2"


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
    assert "this host has no network interface 'nosuch0'; it has lo" in done.stderr
    here = run_command("launch", *flags, SLURM_JOB_NODELIST=f"{socket.gethostname()},node2")
    assert "left over" not in here.stderr
