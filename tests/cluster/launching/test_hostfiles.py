"""Hosts and slots, as hostfiles, lists and schedulers give them."""

import os
import signal
import time
from pathlib import Path

import pytest

from bert_horovod.cluster.launching import deadline, hostfiles
from bert_horovod.cluster.launching.hostfiles import (
    discover,
    expand_counts,
    expand_nodelist,
    format_hostfile,
    from_scheduler,
    parse_hosts,
    read_hostfile,
)
from bert_horovod.errors import UserError
from tests.horovod_runs import PROJECT


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[01-02],gpu-a[1-2]-ib,x", ["node01", "node02", "gpu-a1-ib", "gpu-a2-ib", "x"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
    ],
)
def test_slurms_compressed_names_are_expanded(text, names):
    assert expand_nodelist(text) == names


@pytest.mark.parametrize(
    ("text", "hosts", "counts"), [("8(x3),4", 4, [8, 8, 8, 4]), ("2,1(x2)", 3, [2, 1, 1]), ("8", 3, [8, 8, 8])]
)
def test_slurms_compressed_counts_are_expanded(text, hosts, counts):
    assert expand_counts(text, hosts) == counts


SLURM = {"SLURM_JOB_NODELIST": "a[1-2]"}
SKY = {"SKYPILOT_NODE_IPS": "10.0.0.1"}


def counts_of_four(text: str) -> list[int]:
    return expand_counts(text, 4)


@pytest.mark.parametrize(
    ("environment", "hosts", "source"),
    [
        (SLURM, {"a1": 1, "a2": 1}, "no number of tasks or GPUs"),
        (SLURM | {"SLURM_TASKS_PER_NODE": "4(x2)"}, {"a1": 4, "a2": 4}, "SLURM_TASKS_PER_NODE"),
        (
            SLURM | {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "8"},
            {"a1": 8, "a2": 8},
            "SLURM_GPUS_ON_NODE",
        ),
        (
            SLURM | {"SLURM_TASKS_PER_NODE": "3,2", "SLURM_NTASKS": "5", "SLURM_GPUS_ON_NODE": "8"},
            {"a1": 3, "a2": 2},
            "SLURM_TASKS_PER_NODE",
        ),
        (
            SLURM | {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "8"},
            {"a1": 2, "a2": 2},
            "SLURM_NTASKS_PER_NODE",
        ),
        (
            {"SLURM_JOB_NODELIST": "a[1-3]", "SLURM_NTASKS": "5"}
            | {"SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2),1"},
            {"a1": 2, "a2": 2, "a3": 1},
            "SLURM_TASKS_PER_NODE",
        ),
        ({"SLURM_JOB_NODELIST": "a1,a1", "SLURM_TASKS_PER_NODE": "2,1"}, {"a1": 3}, "SLURM_TASKS_PER_NODE"),
        (SLURM | {"SLURM_GPUS_PER_NODE": "a100:2,v100:3"}, {"a1": 5, "a2": 5}, "SLURM_GPUS_PER_NODE"),
        (SLURM | {"SLURM_GPUS": "a100:16"}, {"a1": 8, "a2": 8}, "SLURM_GPUS"),
        (SLURM | {"SLURM_GPUS": "6", "SLURM_GPUS_ON_NODE": "3"}, {"a1": 3, "a2": 3}, "SLURM_GPUS_ON_NODE"),
        (SLURM | {"SLURM_GPUS": "6", "SLURM_NTASKS_PER_NODE": "1"}, {"a1": 1, "a2": 1}, "SLURM_NTASKS_PER_NODE"),
        (SLURM | {"SLURM_GPUS_PER_NODE": "0", "SLURM_TASKS_PER_NODE": "4(x2)"}, {"a1": 4, "a2": 4}, "TASKS_PER_NODE"),
        (SLURM | {"SLURM_GPUS": "0", "SLURM_TASKS_PER_NODE": "4(x2)"}, {"a1": 4, "a2": 4}, "SLURM_TASKS_PER_NODE"),
        (
            SLURM | {"SLURM_NTASKS": "", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "8"},
            {"a1": 8, "a2": 8},
            "SLURM_GPUS_ON_NODE",
        ),
        ({"LSB_MCPU_HOSTS": "b1 4 b2 2 b1 1"}, {"b1": 5, "b2": 2}, "LSB_MCPU_HOSTS"),
        ({"LSB_HOSTS": "b2 b2 b1"}, {"b2": 2, "b1": 1}, "LSB_HOSTS"),
        ({"SKYPILOT_NODE_IPS": "10.0.0.2\n10.0.0.1"}, {"10.0.0.2": 1, "10.0.0.1": 1}, "which tells of no GPU"),
        (
            {"SKYPILOT_NODE_IPS": "10.0.0.2\n10.0.0.1\n", "SKYPILOT_NUM_GPUS_PER_NODE": "8"},
            {"10.0.0.2": 8, "10.0.0.1": 8},
            "SKYPILOT_NUM_GPUS_PER_NODE",
        ),
        ({"PATH": "/bin", "SLURM_JOB_NODELIST": ""}, None, None),
    ],
)
def test_a_schedulers_variables_give_hosts_and_slots(environment, hosts, source):
    allocation = from_scheduler(environment)
    if hosts is None:
        assert allocation is None
    else:
        assert allocation[0] == hosts
        assert list(allocation[0]) == list(hosts)
        assert source in allocation[1]


def test_hosts_of_a_heterogeneous_jobs_other_parts_are_told(capsys):
    parts = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-9]"}
    assert from_scheduler(SLURM | parts)[0] == {"a1": 1, "a2": 1}
    assert capsys.readouterr().err == "left out are the other parts of this heterogeneous job: b[1-9]\n"


OPTION = "-oProxyCommand=touch"  # ssh would run it


@pytest.mark.parametrize(
    ("read", "given", "message"),
    [
        (expand_nodelist, "node[1-2", "do not match"),
        (expand_nodelist, "node1,,node2", "do not match"),
        (expand_nodelist, "node[2-1]", "'2-1' is not a number or a range"),
        (expand_nodelist, "node[1-99999999]", "more than 65,536 hosts; .*unset it"),
        (expand_nodelist, "a[1-999]b[1-999]c[1-999]", "more than 65,536 hosts"),
        (expand_nodelist, "node[1-" + "9" * 5000 + "]", "is not a number or a range"),
        (expand_nodelist, "node 1", "'node 1' is not a host's name"),
        (counts_of_four, "8(x3)", "is 3 nodes; it lists 4"),
        (counts_of_four, "8x3", "expected a form"),
        (counts_of_four, "8(x99999999)", "expected a form"),
        (counts_of_four, "9" * 5000, "expected a form"),
        (counts_of_four, "0", "expected a form"),
        (from_scheduler, {"SLURM_JOB_NODELIST": "None"}, "SLURM_JOB_NODELIST=None names no host; .*unset it"),
        (from_scheduler, {"LSB_HOSTS": "(null)"}, r"LSB_HOSTS=\(null\) names no host"),
        (from_scheduler, SLURM | {"SLURM_GPUS": "5"}, "SLURM_GPUS=5 on 2 nodes are not equally many.*-H host:n"),
        (from_scheduler, SLURM | {"SLURM_GPUS": "12", "SLURM_GPUS_ON_NODE": "8"}, "SLURM_GPUS=12 on 2 nodes"),
        (from_scheduler, SLURM | {"SLURM_GPUS": "two"}, "SLURM says 'two'"),
        (from_scheduler, {"LSB_MCPU_HOSTS": "fe80::1 4"}, "fe80::1 is an address of IPv6"),
        (from_scheduler, {"LSB_MCPU_HOSTS": "b1 4 b2"}, "expected pairs"),
        (from_scheduler, {"LSB_MCPU_HOSTS": "b1 four"}, "expected pairs"),
        (from_scheduler, {"LSB_MCPU_HOSTS": "b1 99999999999"}, r"LSB_MCPU_HOSTS=.* expected at most 4096"),
        (from_scheduler, SKY | {"SKYPILOT_NUM_GPUS_PER_NODE": "A100"}, "PER_NODE='A100': expected a number"),
        (from_scheduler, {"SKYPILOT_NODE_IPS": "-oX"}, "'-oX' is not a host's name"),
        (from_scheduler, {"OMPI_MCA_orte_default_hostfile": "/none"}, "cannot read the hostfile /none: No such file"),
        (from_scheduler, {"SLURM_JOB_NODELIST": f"a1,{OPTION}"}, "is not a host's name"),
        (from_scheduler, {"SLURM_JOB_NODELIST": "-a[1-2]"}, "is not a host's name"),
        (from_scheduler, {"LSB_MCPU_HOSTS": f"b1 4 {OPTION} 2"}, "is not a host's name"),
        (from_scheduler, {"LSB_HOSTS": f"b1 {OPTION}"}, "is not a host's name"),
        (discover, "echo no >&2; exit 3", "--discover echo no .*: exit code 3, 'no'; expected lines `host slots=N`"),
        (discover, "true", "--discover true names no host"),
        (discover, "echo -oX", "line 1: '-oX': '-oX' is not a host's name"),
        (parse_hosts, "a", "'a' is not of the form host:slots"),
        (parse_hosts, "a:1,", "''"),
        (parse_hosts, "a:0", "no slot"),
        (parse_hosts, "a:1,a:2", "a second time"),
        (parse_hosts, "[::1]:2", "is an address of IPv6"),
    ],
)
def test_what_names_no_hosts_or_not_all_of_their_slots_is_refused(read, given, message):
    with pytest.raises(UserError, match=message):
        read(given)


@pytest.mark.parametrize(
    ("variable", "text", "hosts"),
    [
        ("PBS_NODEFILE", "c2\nc2\nc1\nc2\n", {"c2": 3, "c1": 1}),
        ("LSB_DJOB_HOSTFILE", "c1\nc1\nc2\n", {"c1": 2, "c2": 1}),
        ("PE_HOSTFILE", "c1 4 all.q@c1 UNDEFINED\nc2 2 all.q@c2 <NULL>\n", {"c1": 4, "c2": 2}),
        ("PE_HOSTFILE", "c1 4 all.q@c1 UNDEFINED\nc1 2 long.q@c1 <NULL>\n", {"c1": 6}),
    ],
)
def test_a_schedulers_file_gives_hosts_and_slots(tmp_path, variable, text, hosts):
    (tmp_path / "nodes").write_text(text)
    assert from_scheduler({variable: str(tmp_path / "nodes")}) == (hosts, f"{variable}={tmp_path / 'nodes'}")


OPERATORS = "a-worker-0.a.default.svc", "a-worker-1.a.default.svc"


@pytest.mark.parametrize("line", ["{} slots=4", "{}:4", "{}"], ids=["OpenMPI", "Intel and MPICH", "slots elsewhere"])
@pytest.mark.parametrize("named", [True, False])
def test_the_hostfile_of_kubernetes_mpi_operator_is_found(tmp_path, monkeypatch, line, named):
    path = tmp_path / "hostfile"
    path.write_text("".join(f"{line.format(host)}\n" for host in OPERATORS))
    monkeypatch.setattr(hostfiles, "OPERATORS_HOSTFILE", path)  # else /etc/mpi/hostfile, which only root can make
    environment = {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_set_default_slots": "4"}
    environment |= {"OMPI_MCA_orte_default_hostfile": str(path)} if named else {}
    assert from_scheduler(environment) == (dict.fromkeys(OPERATORS, 4), f"{path} of a job in Kubernetes")


def test_the_hosts_of_a_list_and_those_that_a_command_prints_are_read():
    assert parse_hosts("b:2,a.org:1") == {"b": 2, "a.org": 1}
    assert discover("printf 'a slots=2\\nb:3\\n'") == {"a": 2, "b": 3}
    assert discover("echo a; echo b", 8) == {"a": 8, "b": 8}  # as the MPI operator's script prints them


@pytest.mark.parametrize("slots", ["four", "0", "-1", "4.0", "9" * 5000], ids=lambda slots: slots[:4])
def test_slots_of_the_operator_that_are_no_number_are_refused(tmp_path, slots):
    (tmp_path / "hosts").write_text("a\n")
    environment = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts"), "OMPI_MCA_orte_set_default_slots": slots}
    with pytest.raises(UserError, match=r"orte_set_default_slots='.*: expected the ranks of a host"):
        from_scheduler(environment)


def processes(mark: str) -> list[int]:
    """The processes whose command line holds a mark."""
    commands = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in path.read_bytes()]
    return [int(path.parent.name) for path in commands]


def test_a_command_that_hangs_is_killed_with_what_it_has_started(monkeypatch):
    monkeypatch.setattr(hostfiles, "_DISCOVERY_S", 0.5)
    monkeypatch.setattr(deadline, "_ANSWER_S", 0.5)
    hanging = "sleep 4321.25 & sleep 4321.25; true"
    with pytest.raises(UserError, match="timed out after"):
        discover(hanging)
    assert deadline.exit_code(["sh", "-c", hanging]) is None
    time.sleep(0.2)
    assert processes("4321.25") == []


def test_a_command_may_start_a_daemon():
    assert discover("sleep 4322.25 & echo a:2") == {"a": 2}
    [daemon] = processes("4322.25")
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"])
def test_a_schedulers_file_that_is_missing_or_empty_is_refused(tmp_path, variable):
    with pytest.raises(UserError, match=f"cannot read {variable} .*none: No such file"):
        from_scheduler({variable: str(tmp_path / "none")})
    (tmp_path / "empty").write_text("")
    with pytest.raises(UserError, match=f"{variable} names no host"):
        from_scheduler({variable: str(tmp_path / "empty")})
    (tmp_path / "nodes").write_text("c1\n")
    with pytest.raises(UserError, match=r"PE_HOSTFILE=.* cannot be read"):
        from_scheduler({"PE_HOSTFILE": str(tmp_path / "nodes")})


def test_a_hostfile_that_was_written_is_read_again(tmp_path):
    hosts = {"node10": 8, "node2.org": 4, "10.0.0.1": 1}
    (tmp_path / "hosts").write_text(format_hostfile(hosts))
    assert read_hostfile(tmp_path / "hosts") == hosts
    assert list(read_hostfile(tmp_path / "hosts")) == list(hosts)


def test_a_hostfile_may_have_comments_empty_lines_and_a_byte_order_mark(tmp_path):
    lines = "\ufeff# rack 1\n\na slots=2  # fast\n  \n  b\tslots=1#\r\n\t# c slots=4\nd.org:3\n"
    (tmp_path / "hosts").write_text(lines)
    assert read_hostfile(tmp_path / "hosts") == {"a": 2, "b": 1, "d.org": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=1\nb\n", "line 2: 'b' cannot be read; expected `host slots=N` in every line"),
        ("a # slots=1\n", "line 1: .* cannot be read"),
        ("# none\n", "names no host"),
        ("fe80::1 slots=2\n", "line 1: .*fe80::1 is an address of IPv6, which horovodrun cannot take.*/etc/hosts"),
        ("a:22 slots=2\n", "line 1: .*'a:22' is not a host's name"),
        ("None slots=2\n", "line 1: .*'None' is not a host's name"),
        ("a slots=99999999999\n", "line 1: .* gives a '99999999999' slots; expected at most 4096"),
        ("a slots=0\n", "line 1: .* gives a no slot"),
        ("a slots=1\na slots=1\n", "line 2: .* names a a second time"),
        ("", "names no host"),
    ],
)
def test_a_hostfile_that_cannot_be_read_is_refused_by_the_line(tmp_path, text, message):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError, match=message):
        read_hostfile(tmp_path / "hosts")


def test_a_hostfile_that_is_a_pipe_or_has_no_end_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"cannot read the hostfile {path}: it is not a regular file"):
            read_hostfile(path)
    with pytest.raises(UserError, match=r"cannot read PBS_NODEFILE .*it is not a regular file"):
        from_scheduler({"PBS_NODEFILE": str(tmp_path / "pipe")})


@pytest.mark.parametrize("path", sorted(PROJECT.glob("hostfiles/[!R]*")), ids=lambda path: path.name)
def test_the_examples_can_be_read(path):
    assert read_hostfile(path)
