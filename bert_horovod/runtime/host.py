"""This host's processor, the memory that the C library keeps, and a limit above which a process ends itself."""

import ctypes
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")
_STATUS = Path("/proc/self/status")
BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # instructions by which most processors multiply bfloat16 faster than float32


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's model name; the machine's architecture if the file has none."""
    return next((thread["model name"] for thread in _threads(cpuinfo) if "model name" in thread), platform.machine())


def physical_cores(cpuinfo: Path = _CPUINFO) -> int:
    """Cores of which this process may use at least one thread; each thread counts as one if core ids are missing."""
    usable = os.sched_getaffinity(0)
    threads = [
        thread for thread in _threads(cpuinfo) if int(thread.get("processor", -1)) in usable and "core id" in thread
    ]
    return (
        len({(thread.get("physical id"), thread["core id"]) for thread in threads})
        if len(threads) == len(usable)
        else len(usable)
    )


def instructions(cpuinfo: Path = _CPUINFO) -> set[str]:
    """The flags of the processor's instructions, as in /proc/cpuinfo; empty: they are unknown."""
    return set(next((thread["flags"].split() for thread in _threads(cpuinfo) if "flags" in thread), ()))


def busy_share(spans: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """The share of all cores' time, 0 to 1, that was not idle."""
    busy = sum(after[0] - before[0] for before, after in spans)
    return busy / max(1, sum(after[1] - before[1] for before, after in spans))


def core_ticks(stat: Path = _STAT) -> tuple[int, int]:
    """Ticks since the start, summed over this host's cores: busy with any process or the kernel, and in all."""
    with stat.open(encoding="ascii") as file:
        user, nice, system, idle, waiting, *interrupts = map(int, file.readline().split()[1:9])
    busy = user + nice + system + sum(interrupts)
    return busy, busy + idle + waiting


def _threads(cpuinfo: Path) -> list[dict[str, str]]:
    """The fields of each block of the file; a block describes one thread of a core."""
    try:
        blocks = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")
    except OSError:
        return []
    lines = ([line.partition(":") for line in block.splitlines()] for block in blocks if block.strip())
    return [{name.strip(): value.strip() for name, _, value in block} for block in lines]


# From malloc.h; see mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_SETTINGS = (
    (_M_TRIM_THRESHOLD, -1),  # as a size: the largest
    (_M_MMAP_MAX, 0),
    (_M_ARENA_MAX, 1),  # a thread's own arena has room for 64 MiB; larger blocks would be mapped anew each time
)
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
)
_GPU_DRIVER = "/dev/nvidiactl"


def keep_freed_memory() -> bool:
    """From now on let malloc of this process keep what is freed; True if it does.

    Otherwise glibc gives each tensor of 32 MiB or more back when it is freed, so that the kernel has to find and clear
    its pages again in every step. The process holds its peak until it ends, and the peak may be some percent higher.
    Nothing is changed if the environment sets malloc itself, where the C library has no mallopt, or on a GPU, where
    tensors are not malloc's.

    Call it before the process starts its first thread, because a thread that has taken memory has an arena of its own,
    which glibc later gives to other threads too, whatever the limit is then.
    """
    gpu = os.path.exists(_GPU_DRIVER) and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")
    if gpu or any(variable in os.environ for variable in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # A list, because all of them are to be set, whatever the first one answers.
    return min([mallopt(parameter, value) for parameter, value in _SETTINGS]) == 1


OUT_OF_MEMORY = "out of memory"  # words of the message
_LOOK_S = 0.02


def end_above(limit_bytes: int) -> None:
    """From now on end this process, with exit code 1 and a line on standard error, once it holds more than that."""
    threading.Thread(target=_watch, args=[limit_bytes], name="memory guard", daemon=True).start()


def resident_bytes() -> int:
    """The resident memory of this process now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(status: Path = _STATUS) -> int:
    """The most resident memory of this process so far."""
    try:  # this process's peak alone; ru_maxrss also counts the process that started it
        return int(status.read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # gVisor tells of no VmHWM
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _watch(limit_bytes: int) -> None:
    while (held := resident_bytes()) <= limit_bytes:
        time.sleep(_LOOK_S)
    text = f"bert-horovod: error: {OUT_OF_MEMORY}: this process holds {held:,} bytes, more than {limit_bytes:,}\n"
    os.write(sys.stderr.fileno(), text.encode())
    os._exit(1)
