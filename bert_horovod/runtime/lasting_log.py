"""Standard output and standard error that may fail: long work goes on when it can no longer print."""

import functools
import io
import os
import sys

PROGRAM = "bert-horovod: "  # begins each line that is a message and not a result
begin_of_line = b""  # written before a warning; while a progress bar is shown: what takes it off


class _Lasting(io.FileIO):
    """A file whose writes never raise; `warn` reports the first write that failed."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name, self._warned = name, False

    def write(self, content: bytes) -> int:
        try:
            return super().write(content) or len(content)
        except OSError as error:  # a full disk, a pipe or terminal whose other end is closed
            if not self._warned:
                self._warned = True
                warn(f"cannot write {self._name}: {error.strerror}; the work goes on without it")
            return len(content)


def outlive_log() -> None:
    """From now on no print of this process raises, even if standard output or standard error fails.

    A sys.stdout or sys.stderr that other code has replaced stays as it is.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the parent process closed it: the next opened file would get its number, and the prints
            os.open(os.devnull, os.O_RDWR)  # open gives the lowest free number
    for name, descriptor, words in (("stdout", 1, "standard output"), ("stderr", 2, "standard error")):
        stream, original = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is not original or isinstance(getattr(getattr(stream, "buffer", None), "raw", None), _Lasting):
            continue
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_Lasting(descriptor, words)),
            encoding=getattr(stream, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)  # Python flushes this one when it exits


@functools.cache
def warn_once(text: str) -> None:
    """As `warn`, the first time that this process says this."""
    warn(text)


def warn(text: str) -> None:
    """Write a line to standard error; safe in threads and in signal handlers. Does nothing if the write fails."""
    try:
        os.write(2, begin_of_line + f"{PROGRAM}{text.rstrip()}\n".encode(errors="backslashreplace"))
    except OSError:
        return
