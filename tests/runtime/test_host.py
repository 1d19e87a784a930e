"""What Linux tells of a processor.

Freed memory stays with the process, unless its environment says otherwise. Each in a process of its own.

A process that ends itself where it holds too much memory.
"""

import os
import subprocess
import sys
import time

import pytest

from bert_horovod.runtime.host import (
    OUT_OF_MEMORY,
    busy_share,
    core_ticks,
    instructions,
    peak_resident_bytes,
    physical_cores,
    processor_name,
    resident_bytes,
)
from tests.horovod_runs import run_process, run_python


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
    assert instructions(tmp_path / "one") == {"a", "b"}


@pytest.mark.parametrize("text", [None, "", "processor: 0\nBogoMIPS: 48\n"])
def test_where_nothing_is_told_each_thread_is_a_core(tmp_path, text):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert physical_cores(path) == len(os.sched_getaffinity(0))
    assert processor_name(path) == os.uname().machine
    assert instructions(path) == set()


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


pytestmark = pytest.mark.full

# Page faults of ten times taking, filling and giving back 64 MiB, in the main thread and in others.
FAULTS = """
import ctypes, resource, sys, threading, time
from bert_horovod.runtime.host import keep_freed_memory
library, size = ctypes.CDLL(None), 64 << 20
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
def use(times):
    for _ in range(times):
        block = library.malloc(size)
        ctypes.memset(block, 1, size)
        library.free(block)
def faults():
    use(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(10)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
def count():
    faults()
    for i in range(3):  # one after another, all alive: each has an arena, or shares the first
        threading.Thread(target=lambda: (faults(), done.wait()), daemon=True).start()
        while len(counts) < i + 2:
            time.sleep(0.01)
    done.set()
    print(*counts)
counts, done = [], threading.Event()
"""
HERE = "print(keep_freed_memory())\ncount()\n"
GPU = "from bert_horovod.runtime import host\nhost._GPU_DRIVER = '/dev/null'\n"  # a file that exists
COMMAND = """
from bert_horovod.__main__ import main
sys.argv = ["bert-horovod", "recipes"]
try:
    main()
except SystemExit:
    time.sleep(0.2)  # the thread that watches the launcher has begun
    count()
"""
PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
GLIBC = pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="the C library is not glibc")


def _run(then: str = HERE, **variables: str) -> tuple[str, list[int]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = run_process([sys.executable, "-c", FAULTS + then], clean | variables)
    assert done.returncode == 0, done.stderr
    *_, kept, counts = done.stdout.splitlines()
    return kept, list(map(int, counts.split()))


@GLIBC
def test_memory_that_is_used_again_is_not_taken_from_the_kernel_again():
    kept, counts = _run()
    assert kept == "True"
    assert max(counts) < PAGES / 10


@GLIBC
def test_a_rank_under_a_launcher_keeps_it_too_though_it_has_a_thread_that_watches_the_launcher():
    _, counts = _run(COMMAND, HOROVOD_RANK="0", HOROVOD_SIZE="1")
    assert max(counts) < PAGES / 10


@GLIBC
@pytest.mark.parametrize(("visible", "expected"), [("0", "False"), ("", "True"), ("-1", "True")])
def test_nothing_changes_on_a_gpu_that_the_process_may_use(visible, expected):
    assert _run(GPU + HERE, CUDA_VISIBLE_DEVICES=visible)[0] == expected


def test_what_the_environment_says_of_malloc_stays():
    kept, counts = _run(MALLOC_MMAP_THRESHOLD_="131072")
    assert kept == "False"
    assert min(counts) > 0


PROGRAM = """
import sys, time
from bert_horovod.runtime.host import end_above, resident_bytes
end_above(resident_bytes() + (64 << 20))
held = b"1" * int(sys.argv[1])
time.sleep(float(sys.argv[2]))
print("done")
"""


def run(held_bytes: int, seconds: float) -> subprocess.CompletedProcess:
    return run_python("-c", PROGRAM, held_bytes, seconds)


def test_a_process_above_its_limit_says_so_and_ends():
    done = run(256 << 20, 50)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"bert-horovod: error: {OUT_OF_MEMORY}: this process holds " in done.stderr


def test_a_process_below_its_limit_goes_on():
    done = run(1 << 20, 0.2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_is_held_is_counted():
    before = resident_bytes()
    held = b"1" * (64 << 20)
    assert resident_bytes() - before > 48 << 20
    assert held


def test_a_peak_is_told_where_the_kernel_has_no_line_for_it_too(tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t1 kB\n", encoding="utf-8")
    for status in (tmp_path / "status", tmp_path / "none"):
        assert 10 << 20 < peak_resident_bytes(status) < 1 << 40
    (tmp_path / "status").write_text("VmHWM:\t   2048 kB\n", encoding="utf-8")
    assert peak_resident_bytes(tmp_path / "status") == 2 << 20
