"""Explain SIGBUS, which ends a process when a file that it has mapped is cut short or its disk fails: name the file."""

import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from bert_horovod.errors import DamagedData
from bert_horovod.runtime.lasting_log import warn

_LIBC = ctypes.CDLL(None)


def explain_bus_errors() -> None:
    """From now on SIGBUS prints one message and ends the process with DamagedData's exit code.

    The handler is a C callback, because a Python handler would never run: the processor repeats the failed read first,
    again and again.
    """
    _LIBC.signal(signal.SIGBUS, _HANDLER)


def cut_files(maps: str) -> Iterator[Path]:
    """The mapped files, from the text of a /proc/.../maps, that are now shorter than their mapping."""
    for line in maps.splitlines():
        place, rights, offset, _, inode, *path = line.split(maxsplit=5)
        if inode == "0" or not path or rights[0] != "r" or rights[3] != "s":  # private: a program or a library
            continue
        begin, end = (int(part, 16) for part in place.split("-"))
        try:
            if os.stat(path[0]).st_size <= int(offset, 16) + end - begin - mmap.PAGESIZE:
                yield Path(path[0])
        except OSError:  # the file was removed: its content stays as long as it is mapped
            continue


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _HANDLER(number: int) -> None:
    cut = list(dict.fromkeys(map(str, cut_files(Path("/proc/self/maps").read_text(errors="replace")))))
    which = f"{', '.join(cut)}: cut short while it was read" if cut else "a mapped file: its disk or network failed"
    warn(
        f"error: cannot read {which} (SIGBUS). See which files of a token store are damaged with: bert-horovod verify "
        "--data_dir DIR; then run the same command again"
    )
    os._exit(DamagedData.exit_code)
