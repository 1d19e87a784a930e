"""Files that this process may not read, limits that it may not exceed, and small disks, for as long as a test asks."""

import contextlib
import ctypes
import gc
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.horovod_runs import PATIENCE_S

_CAPABILITY_VERSION = 0x20080522  # of Linux's capget and capset
_READS_EVERYTHING = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextlib.contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """In here this thread may not read a file, also where it is root's: no directory that tests share is changed."""
    mode, capabilities = path.stat().st_mode, _capabilities()
    path.chmod(0)
    try:
        _take_capabilities([capabilities[0] & ~_READS_EVERYTHING, *capabilities[1:]])
        yield
    finally:
        _take_capabilities(capabilities)
        path.chmod(mode)


def _capabilities() -> list[int]:
    """This thread's: effective, permitted and inheritable ones, the lower 32 first."""
    sets = (ctypes.c_uint32 * 6)()
    _call("capget", sets)
    return list(sets)


def _take_capabilities(sets: list[int]) -> None:
    _call("capset", (ctypes.c_uint32 * 6)(*sets))


def _call(name: str, sets: ctypes.Array) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)  # 0: this thread
    if getattr(ctypes.CDLL(None, use_errno=True), name)(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """In here this process may open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def small_file_system(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory, mounted at `path`; skips where this user may not mount one."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield path
    # Not at once: mapped arrays live in cycles, and the thread that saves, which has the lowest priority, may let go of
    # the directory after its result is known.
    end = time.monotonic() + PATIENCE_S
    while subprocess.run(["umount", str(path)]).returncode:
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.1)
