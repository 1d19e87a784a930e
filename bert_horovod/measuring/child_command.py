"""A command of this program in processes of its own, which end when it ends or this process does, even by SIGKILL."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from bert_horovod.runtime.children import end_with_parent, python_settings

_ENDING_S = 20  # time for a launcher to end its ranks


class Ended(NamedTuple):
    """How a command ended, and all that it said."""

    code: int  # the exit code; -n: killed by signal n
    late: bool  # it was ended, because its time was up
    output: str
    errors: str


def run_command(words: Sequence[str], limit_s: float | None = None) -> Ended:
    """Run `bert-horovod WORDS`, for at most `limit_s` seconds.

    An exception in this process, such as KeyboardInterrupt, ends the child too.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "bert_horovod", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | python_settings(),
            start_new_session=True,  # Ctrl-C reaches this process only; it ends the child
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        late = False
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(child)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
    return Ended(child.returncode, late, *texts)


def _end(child: subprocess.Popen) -> None:
    """End a child that may still run; SIGTERM first, because a launcher then ends its ranks before itself."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_ENDING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
