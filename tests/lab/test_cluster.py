"""The cluster in a box: hosts of their own, links of their own, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.cluster import bits_per_s
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

SCRIPT = PROJECT / "lab" / "cluster.py"


@pytest.mark.full
def test_bytes_between_hosts_are_counted_and_a_cut_link_carries_none(start_cluster):
    box = start_cluster(hosts=2)
    sent, received = box.traffic("node1")[0], box.traffic("node2")[1]
    done = box.run("node1", ["bash", "-c", "head -c 3000000 /dev/zero | ssh node2 wc -c"])
    assert done.stdout.strip() == "3000000"
    for count in (box.traffic("node1")[0] - sent, box.traffic("node2")[1] - received):
        assert 3_000_000 < count < 3_300_000
    reach = ["ssh", "-o", "ConnectTimeout=1", "node2", "true"]
    box.cut("node2")
    assert box.run("node1", reach).returncode == 255
    box.mend("node2")
    assert box.run("node1", ["ssh", "node2", "true"]).returncode == 0


@pytest.mark.full
def test_nothing_is_left_when_the_owner_is_killed(start_cluster):
    start_cluster(hosts=1)  # or skips
    mark = f"sleep 98{os.getpid()}"
    owner = subprocess.Popen(
        [sys.executable, SCRIPT, "--hosts", "2", "--", "bash", "-c", f"ssh node2 {mark} & echo up; {mark}"],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert owner.stdout.readline() == "up\n"
    _await(lambda: len(_running(mark)) >= 2)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    _await(lambda: not _running(mark))


@pytest.mark.full
def test_a_command_that_takes_too_long_is_ended(start_cluster):
    box = start_cluster(hosts=1)
    with pytest.raises(subprocess.TimeoutExpired):
        box.run("node1", ["sleep", "60"], timeout=0.5)
    assert "sleep 60" not in box.run("node1", ["ps", "-e", "-o", "args"]).stdout


@pytest.mark.parametrize(("rate", "expected"), [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("100mbit", 1e8), ("64kbit", 64e3)])
def test_rates_are_read(rate, expected):
    assert bits_per_s(rate) == expected


def _running(mark: str) -> list[str]:
    """Processes on the whole machine whose command line is this."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(entry.read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:  # it has ended meanwhile
            continue
    return [line for line in commands if line == mark]


def _await(condition) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
