"""Files that this process may not read, and limits that it may not exceed, for as long as a test asks."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """In here this process may not read a file, also where it is root's: then the process is nobody's for a while."""
    mode, root = path.stat().st_mode, os.geteuid() == 0
    opened: list[Path] = []  # pytest's directories are their user's alone
    for parent in path.parents:
        if not parent.stat().st_mode & 0o001:
            opened.append(parent)
            parent.chmod(parent.stat().st_mode | 0o055)
    path.chmod(0)
    try:
        if root:
            os.seteuid(_NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(mode)
        for parent in opened:
            parent.chmod(parent.stat().st_mode & ~0o055)


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
