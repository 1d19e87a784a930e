"""horovodrun's command line, in a process that `launch` starts."""

import os
import signal
from functools import partial
from typing import Any

from horovod.runner import launch
from horovod.runner.common.util.timeout import Timeout
from horovod.runner.driver import driver_service

from bert_horovod.runtime.children import end_with_parent


def _safe_remote_command(original: Any, command: str, **options: Any) -> str:
    """Let a helper that horovodrun starts over ssh import no modules from the home directory."""
    return original(f"env PYTHONSAFEPATH=1 {command}", **options)


def _begin_anew(timeout: Timeout) -> tuple[Any, ...]:
    """A time limit that horovodrun sends to another host, as pickle wants it: it counts from there, by that clock.

    Horovod sends the time of day at which it ends; then hosts whose clocks differ by more than the limit never start.
    """
    return Timeout, (timeout._timeout, timeout._message)


def _end_forks_with_us() -> None:
    """Let processes forked here end with this one: horovodrun forks one that imports TensorFlow, to look for Gloo."""
    parent = 0

    def note() -> None:
        nonlocal parent
        parent = os.getpid()

    os.register_at_fork(before=note, after_in_child=lambda: end_with_parent(parent))


def main() -> None:
    """horovodrun's command line."""
    _end_forks_with_us()
    Timeout.__reduce__ = _begin_anew
    # horovodrun's own handlers would kill the ranks at a signal that a scheduler sends to all processes of a job.
    signal.signal = lambda *_: None
    driver_service.get_remote_command = partial(_safe_remote_command, driver_service.get_remote_command)
    launch.run_commandline()
