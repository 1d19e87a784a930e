"""A mapped file that is cut short, or whose disk fails, ends the process by SIGBUS: here that names the file."""

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
    """From now on SIGBUS is one message and DamagedData's exit code.

    A handler of Python's own would never run: the read that failed is tried again and again before.
    """
    _LIBC.signal(signal.SIGBUS, _HANDLER)


def cut_files(maps: str) -> Iterator[Path]:
    """The files of a /proc/.../maps that now end before what is mapped of them does."""
    for line in maps.splitlines():
        place, rights, offset, _, inode, *path = line.split(maxsplit=5)
        if inode == "0" or not path or rights[0] != "r" or rights[3] != "s":  # private: a program or a library
            continue
        begin, end = (int(part, 16) for part in place.split("-"))
        try:
            if os.stat(path[0]).st_size <= int(offset, 16) + end - begin - mmap.PAGESIZE:
                yield Path(path[0])
        except OSError:  # removed since: its content stays as long as it is mapped
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
