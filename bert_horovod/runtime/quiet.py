"""TensorFlow without the messages that it prints on import and when XLA starts; Ctrl-C while modules are imported.

Imports the standard library alone.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


def import_tensorflow() -> None:
    """Import TensorFlow, and hold back its native messages about absent GPUs, registered plugins and CPU features.

    Each rank would print them. If the import fails, they are shown. Does nothing if TensorFlow is there.
    """
    if "tensorflow" in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with native_messages_held_back() as standard_error, interrupt_ends_at_once(standard_error):
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def native_messages_held_back() -> Iterator[int]:
    """Hold back all writes to standard error, those of native libraries too; show them if there is an error.

    Yields a descriptor of standard error itself.
    """
    sys.stderr.flush()
    standard_error = os.dup(2)
    with open(os.memfd_create("messages"), "w+b") as messages:  # needs no directory that can be written
        os.dup2(messages.fileno(), 2)
        try:
            yield standard_error
        except Exception:
            messages.seek(0)
            os.write(standard_error, messages.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


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
