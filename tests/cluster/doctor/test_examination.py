"""The doctor, on hosts that are well and on hosts that are ill in every way that can be had for real."""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Cluster, cluster, why_not
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

DOCTOR = [sys.executable, "-m", "bert_horovod", "doctor"]
pytestmark = [pytest.mark.full, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def examine(box: Cluster, *flags: str | Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of the doctor on the first host."""
    done = box.run("node1", [*DOCTOR, *flags], env=clean_environment(**(environment or {})), timeout=PATIENCE_S)
    assert done.stderr == ""
    return done.returncode, done.stdout


def lines(output: str, name: str) -> list[str]:
    """A check's lines, each with its mend."""
    checks = output.replace("\n" + " " * 22, " ").splitlines()
    return [line for line in checks if line.split()[1:2] == [name]]


@pytest.fixture(scope="module")
def box() -> Iterator[Cluster]:
    """Three hosts with slow links, so that the machine's own load counts little."""
    with cluster(hosts=3, link="100mbit", slots=2) as box:
        yield box


def test_hosts_that_are_well_pass_and_the_line_that_starts_a_run_is_printed(box):
    code, output = examine(box, "-H", "node1:2,node2:1", "--expect_gbit", "0.1")
    assert code == 0, output
    for name in ("ssh", "versions", "network", "name", "clocks", "GPUs", "all-reduce"):
        assert [line.split()[0] for line in lines(output, name)] == ["ok"], name
    assert f"horovod {importlib.metadata.version('horovod')}" in output
    assert "Horovod with Gloo" in output
    assert "eth0 on 2 hosts, 10 Gb/s" in output  # what a veth says of itself
    assert "between 2 ranks" in output
    assert "launch -np 3 -H node1:2,node2:1 --network_interfaces eth0 -- pretrain" in output.splitlines()[-1]


@pytest.mark.slow
def test_a_slow_link_is_found_and_its_host_named(box):
    box.shape("node3", "20mbit")
    try:
        code, output = examine(box, "-H", "node1:1,node2:1,node3:1", "--expect_gbit", "0.1")
    finally:
        box.shape("node3", "100mbit")
    assert code == 1
    (line,) = lines(output, "all-reduce")
    assert line.startswith("FAILED")
    assert "expected 70% of 0.1 Gb/s" in line
    assert "Slow: node3, 0.0" in line
    assert "node2 to" not in line


@pytest.mark.slow
def test_ctrl_c_ends_the_doctor_and_all_that_it_started(box):
    process = box.start(
        "node1",
        [*DOCTOR, "-H", "node1:1,node2:1"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pattern = ["pgrep", "-f", "horovod.runner|doctor.all_reduce"]
    end = time.monotonic() + PATIENCE_S
    while box.run("node2", pattern).returncode:  # until a rank runs there
        assert time.monotonic() < end, "the doctor started no rank on node2"
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert errors == "bert-horovod: interrupted\n"
    end = time.monotonic() + PATIENCE_S
    while left := [host for host in ("node1", "node2") if not box.run(host, pattern).returncode]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


@pytest.fixture(scope="module")
def differing(box, tmp_path_factory) -> Iterator[str]:
    """What the doctor says of hosts that all answer, the second of them with many faults."""
    directory = tmp_path_factory.mktemp("differing")
    other_version = directory / "METADATA"
    numpy = next(path for path in importlib.metadata.files("numpy") if path.name == "METADATA").locate()
    other_version.write_text(
        numpy.read_text().replace(f"Version: {importlib.metadata.version('numpy')}", "Version: 2.0.0")
    )
    other_source = directory / "errors.py"
    other_source.write_text("# another version of the project\n")
    temporary = directory / "temporary"
    temporary.mkdir()
    hosts_file = box.hosts_file("node2")
    before = hosts_file.read_text()
    with contextlib.ExitStack() as undo:
        for mount in (
            ["--bind", other_version, numpy],
            ["--bind", other_source, PROJECT / "bert_horovod" / "errors.py"],
            ["-t", "tmpfs", "-o", "size=1m", "tmpfs", temporary],
        ):
            assert box.run("node2", ["mount", *mount]).returncode == 0
            undo.callback(box.run, "node2", ["umount", mount[-1]])
        hosts_file.write_text(before.replace("127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.1.1 node2\n"))
        undo.callback(hosts_file.write_text, before)
        code, output = examine(box, "--hostfile", box.hostfile, environment={"TMPDIR": str(temporary)})
        assert code == 1
        yield output


def test_versions_out_of_the_tested_range_and_another_state_of_the_project_are_found(differing):
    report = "\n".join(lines(differing, "versions"))
    assert "FAILED   versions     node2: numpy 2.0.0; expected numpy <2.5,>=2.1 mend: run/setup.sh on node2" in report
    version = importlib.metadata.version("numpy")
    assert f"numpy: {version} on node1, node3; 2.0.0 on node2; expected the same on all hosts" in report
    (line,) = [line for line in lines(differing, "versions") if "source" in line]
    assert "on node1, node3;" in line
    assert "copy the project" in line


def test_a_name_at_127_is_found_with_the_line_that_makes_it_so(differing):
    (line,) = lines(differing, "name")
    assert line.startswith(
        'FAILED   name         node2: its own name node2 is 127.0.1.1, by /etc/hosts line 2, "127.0.1.1 node2"'
    )
    assert "mend: on node2, take node2 out of that line and add `10.77.0.2 node2`" in line


def test_a_full_disk_is_found_and_nothing_is_reduced_before_the_rest_is_mended(differing):
    (line,) = lines(differing, "disk")
    assert line.startswith("FAILED   disk         node2: ")
    assert " GB free; expected 0.1 GB for temporary files" in line
    (line,) = lines(differing, "all-reduce")
    assert line.startswith("warning")
    assert "not tried" in line
    assert "5 of" in differing.splitlines()[-1]
    assert "launch" not in differing


@pytest.fixture(scope="module")
def unreachable() -> str:
    """What the doctor says of hosts of which each cannot be reached in its own way."""
    with cluster(hosts=7) as box:
        box.cut("node2")
        box.run("node3", ["pkill", "sshd"])
        box.run("node4", ["mount", "--bind", "/dev/null", box.directory / "authorized_keys"])
        box.run("node6", ["mount", "-t", "tmpfs", "tmpfs", PROJECT])
        box.run("node7", ["pkill", "-STOP", "sshd"])
        known = box.directory / "known_hosts"
        known.write_text("".join(line for line in known.read_text().splitlines(True) if not line.startswith("node5")))
        code, output = examine(box, "-H", "node1:1,node2:1,node3:1,node4:1,node5:1,node6:1,node7:1,nowhere:1")
        assert code == 1
        return output


@pytest.mark.parametrize(
    ("host", "level", "found", "mend"),
    [
        ("node2", "FAILED", "it cannot be reached", "firewall"),
        ("node3", "FAILED", "nothing listens on its ssh port", "systemctl start ssh"),
        ("node4", "FAILED", "it asks for a password", "ssh-copy-id node4"),
        ("node5", "warning", "its host key is unknown here", "ssh-keyscan node5 >> ~/.ssh/known_hosts"),
        ("node6", "FAILED", "it has no ", "same path on every host"),
        ("node7", "FAILED", "it cannot be reached", "ping node7"),
        ("nowhere", "FAILED", "its name is not resolved", "/etc/hosts"),
    ],
)
def test_why_a_host_does_not_answer_is_told_with_what_mends_it(unreachable, host, level, found, mend):
    (line,) = [line for line in lines(unreachable, "ssh") if f" {host}: " in line]
    assert line.startswith(level)
    assert found in line.partition(" mend: ")[0]
    assert mend in line.partition(" mend: ")[2]


def test_a_host_whose_own_name_stands_for_nothing_is_told_so(box):
    hosts_file = box.hosts_file("node1")
    before = hosts_file.read_text()
    hosts_file.write_text(before.replace(" node1", ""))
    try:
        code, output = examine(box)
    finally:
        hosts_file.write_text(before)
    assert code == 1
    (line,) = lines(output, "name")
    assert "localhost: its own name node1 has no address" in line


def test_an_interface_that_is_not_there_is_refused_by_name(box):
    code, output = examine(box, "-H", "node1:1,node2:1", "--network_interfaces", "ib0")
    assert code == 1
    assert "FAILED   network      node2: no interface ib0 with an IPv4 address; expected one of eth0" in output
