"""A limit of resident memory for a process: above it the process ends itself before it swaps or the kernel kills it."""

import os
import sys
import threading
import time

OUT_OF_MEMORY = "out of memory"  # words of the message
_LOOK_S = 0.02


def end_above(limit_bytes: int) -> None:
    """From now on end this process, with exit code 1 and a line on standard error, once it holds more than that."""
    threading.Thread(target=_watch, args=[limit_bytes], name="memory guard", daemon=True).start()


def resident_bytes() -> int:
    """The resident memory of this process now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _watch(limit_bytes: int) -> None:
    while (held := resident_bytes()) <= limit_bytes:
        time.sleep(_LOOK_S)
    text = f"bert-horovod: error: {OUT_OF_MEMORY}: this process holds {held:,} bytes, more than {limit_bytes:,}\n"
    os.write(sys.stderr.fileno(), text.encode())
    os._exit(1)
