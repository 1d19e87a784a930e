"""Files that this process may not read, and limits that it may not exceed, for as long as a test asks."""

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

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
