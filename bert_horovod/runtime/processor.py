"""This host's processor, from Linux's /proc/cpuinfo."""

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


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


def _threads(cpuinfo: Path) -> list[dict[str, str]]:
    """The fields of each block of the file; a block describes one thread of a core."""
    try:
        blocks = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")
    except OSError:
        return []
    lines = ([line.partition(":") for line in block.splitlines()] for block in blocks if block.strip())
    return [{name.strip(): value.strip() for name, _, value in block} for block in lines]
