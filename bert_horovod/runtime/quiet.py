"""TensorFlow without the messages that it prints on import and when XLA starts."""

import contextlib
import os
import sys
from collections.abc import Iterator

from bert_horovod.runtime.interrupt import interrupt_ends_at_once


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
