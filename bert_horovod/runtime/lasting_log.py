"""A log that may break: long work goes on when nobody can take its words any more."""

import io
import os
import sys

PROGRAM = "bert-horovod: "  # before each line for people that is no result


class _Lasting(io.FileIO):
    """A file whose writes never fail; the first that would is told to `warn`."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name, self._warned = name, False

    def write(self, content: bytes) -> int:
        try:
            return super().write(content) or len(content)
        except OSError as error:  # a full disk, a reader that has gone, a terminal that was closed
            if not self._warned:
                self._warned = True
                warn(f"cannot write {self._name}: {error.strerror}; the work goes on without it")
            return len(content)


def outlive_log() -> None:
    """From now on no print of this process fails, whatever becomes of standard output and standard error.

    Streams that something else has put in their place stay as they are.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed by who started this: the next file that is opened would take what is printed
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
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
        setattr(sys, f"__{name}__", lasting)  # what Python flushes at its end


def warn(text: str) -> None:
    """Write a line to standard error, from wherever: a thread, a signal's handler; in vain if nobody can take it."""
    try:
        os.write(2, f"{PROGRAM}{text.rstrip()}\n".encode())
    except OSError:
        return
