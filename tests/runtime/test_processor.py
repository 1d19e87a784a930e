"""What Linux tells of a processor."""

import os
import time

import pytest

from bert_horovod.runtime.host import busy_share, core_ticks, physical_cores, processor_name


def cpuinfo(path, cores: list[tuple[int, int]]):
    """A file of as many threads as this process may use, by their socket and core."""
    blocks = (
        f"processor\t: {number}\nmodel name\t: Fast 9000\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t: a b\n"
        for number, (socket, core) in zip(sorted(os.sched_getaffinity(0)), cores, strict=True)
    )
    path.write_text("\n".join(blocks))
    return path


def test_threads_of_one_core_count_once(tmp_path):
    count = len(os.sched_getaffinity(0))
    assert physical_cores(cpuinfo(tmp_path / "one", [(0, 0)] * count)) == 1
    assert physical_cores(cpuinfo(tmp_path / "sockets", [(i, 0) for i in range(count)])) == count
    assert physical_cores(cpuinfo(tmp_path / "cores", [(0, i) for i in range(count)])) == count
    assert processor_name(tmp_path / "one") == "Fast 9000"


@pytest.mark.parametrize("text", [None, "", "processor: 0\nBogoMIPS: 48\n"])
def test_where_nothing_is_told_each_thread_is_a_core(tmp_path, text):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert physical_cores(path) == len(os.sched_getaffinity(0))
    assert processor_name(path) == os.uname().machine


def test_ticks_that_are_not_idle_are_busy(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert core_ticks(stat) == (171, 4671)  # waiting for a disk is idle
    assert busy_share([((0, 0), (30, 40)), ((100, 200), (110, 240))]) == 0.5
    assert busy_share([((5, 9), (5, 9))]) == 0


def test_work_makes_cores_busy():
    before, end = core_ticks(), time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    share = busy_share([(before, core_ticks())])
    assert 0.5 / os.cpu_count() <= share <= 1
