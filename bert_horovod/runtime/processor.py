"""This host's processor, from Linux's /proc/cpuinfo and /proc/stat."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")


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


def busy_share(spans: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """The share of all cores' time, 0 to 1, that was not idle.

    Args:
        spans: `core_ticks` before and after each stretch of time. A tick is about 10 ms: all of them together should
            last seconds.
    """
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
