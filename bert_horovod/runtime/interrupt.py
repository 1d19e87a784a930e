"""Ctrl-C while modules are imported; imports the standard library alone."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_ends_at_once(standard_error: int = 2) -> Iterator[None]:
    """Let Ctrl-C end this process at once, with one line on the descriptor `standard_error` and exit code 130.

    A KeyboardInterrupt in the middle of an import gives a traceback, or native libraries' messages. Does nothing in a
    process that ignores Ctrl-C or handles it itself, and in a thread.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def end(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(standard_error, b"bert-horovod: interrupted\n")
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
