"""Freed memory stays with the process, unless its environment says otherwise. Each in a process of its own."""

import os
import subprocess
import sys

import pytest

# Page faults of ten times taking, filling and giving back 64 MiB, in the main thread and in another one.
FAULTS = """
import ctypes, resource, threading
from bert_horovod.runtime.allocator import keep_freed_memory
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
counts = []
print(keep_freed_memory())
faults()
thread = threading.Thread(target=faults)
thread.start()
thread.join()
print(*counts)
"""


def _run(**variables: str) -> tuple[str, list[int]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=clean | variables, capture_output=True, text=True, check=True
    )
    kept, counts = done.stdout.splitlines()
    return kept, list(map(int, counts.split()))


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="the C library is not glibc")
def test_memory_that_is_used_again_is_not_taken_from_the_kernel_again():
    kept, counts = _run()
    pages = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert kept == "True"
    assert max(counts) < pages / 10


def test_what_the_environment_says_of_malloc_stays():
    kept, counts = _run(MALLOC_MMAP_THRESHOLD_="131072")
    assert kept == "False"
    assert min(counts) > 0
