"""bert-horovod hosts and launch: where hosts come from, in real processes with a scheduler's environment."""

import argparse
import socket

import pytest

from bert_horovod.__main__ import dispatch, parse
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


JOB = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS_PER_NODE": "4"}


def test_a_hostfile_is_printed_and_where_it_comes_from():
    done = run_command("hosts", **JOB)
    assert (done.returncode, done.stdout) == (0, "node1 slots=4\nnode2 slots=4\n")
    assert done.stderr == "2 hosts, 8 slots, from SLURM_JOB_NODELIST, SLURM_NTASKS_PER_NODE\n"


def test_a_hostfile_is_written(tmp_path):
    done = run_command("hosts", "--slots", "8", "--output", str(tmp_path / "hosts"), **JOB)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "hosts").read_text() == "node1 slots=8\nnode2 slots=8\n"


@pytest.mark.parametrize(
    ("flags", "nodes", "message"),
    [
        ([], "node[", "SLURM_JOB_NODELIST=node["),
        (["--slots", "0"], "node1", "--slots 0: expected 1 to 4096"),
        (["--output", "/nowhere/hosts"], "node1", "--output /nowhere/hosts: there is no directory /nowhere"),
    ],
)
def test_what_cannot_be_is_one_message(monkeypatch, capsys, flags, nodes, message):
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    assert dispatch(parse(["bert-horovod", "hosts", *flags])) == 2
    told = capsys.readouterr()
    assert (message in told.err, told.err.count("\n"), told.out) == (True, 1, "")
