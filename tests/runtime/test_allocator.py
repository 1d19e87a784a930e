"""Freed memory stays with the process, unless its environment says otherwise. Each in a process of its own."""

import os
import subprocess
import sys

import pytest

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
GPU = "from bert_horovod.runtime import allocator\nallocator._GPU_DRIVER = '/dev/null'\n"  # a file that exists
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
    done = subprocess.run(
        [sys.executable, "-c", FAULTS + then], env=clean | variables, capture_output=True, text=True, check=True
    )
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
