"""bert-horovod hosts: real processes with a scheduler's environment."""

import pytest

from tests.horovod_runs import run_command

pytestmark = pytest.mark.full

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
    ("flags", "environment", "message"),
    [
        ((), {}, "found no job of SLURM, PBS, LSF, Grid Engine, SkyPilot or Kubernetes"),
        (("--slots", "0"), JOB, "--slots 0: expected 1 to 4096"),
        (("--output", "/nowhere/hosts"), JOB, "--output /nowhere/hosts: there is no directory /nowhere"),
        ((), {"SLURM_JOB_NODELIST": "node["}, "SLURM_JOB_NODELIST=node["),
    ],
)
def test_what_cannot_be_is_one_message(flags, environment, message):
    done = run_command("hosts", *flags, **environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
