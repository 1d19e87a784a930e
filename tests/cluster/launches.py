"""Starts real launchers and looks for what they leave behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.horovod_runs import PATIENCE_S, clean_environment

# The recipe that starts quickest.
QUICK = {"xla": "off", "threads": 1, "evaluate_steps": 0}
# Ranks of Open MPI that wait leave their core to others: there are fewer cores than ranks.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def require_mpi() -> None:
    """Skip where Horovod has no MPI."""
    horovod = pytest.importorskip("horovod.tensorflow")
    if not horovod.mpi_built():
        pytest.skip("needs a Horovod with MPI: install Open MPI, then run/setup.sh builds it")


class Launched:
    """`bert-horovod launch` that runs; what it prints goes to files, so that nothing waits for a reader."""

    def __init__(self, command: list, directory: Path, mark: str, start: Callable[..., subprocess.Popen]) -> None:
        self.mark = mark  # in the command line of all its processes
        self.stdout, self.stderr = directory / "stdout", directory / "stderr"
        with self.stdout.open("w") as stdout, self.stderr.open("w") as stderr:
            self.process = start(command, stdout=stdout, stderr=stderr)

    def await_output(self, *texts: str) -> None:
        """Wait until rank 0 has printed these, one after another."""
        self._await(self.stdout, texts)

    def await_error(self, *texts: str) -> None:
        """Wait until standard error has these, one after another."""
        self._await(self.stderr, texts)

    def _await(self, path: Path, texts: tuple[str, ...]) -> None:
        pattern = re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
        end = time.monotonic() + PATIENCE_S
        while not pattern.search(path.read_text()):
            assert self.process.poll() is None, self.stderr.read_text()
            assert time.monotonic() < end, path.read_text()
            time.sleep(0.05)

    def end(self, code: int = 0) -> tuple[str, str]:
        """Wait for the end, with this exit code: standard output, standard error."""
        assert self.process.wait(PATIENCE_S) == code, self.stderr.read_text()
        return self.stdout.read_text(), self.stderr.read_text()

    def signal(self, number: int) -> None:
        """Send the launcher a signal."""
        os.kill(self._find("launch", set()), number)

    def rank(self, number: int) -> int:
        """The process id of a rank."""
        return self._find("pretrain", {f"{name}_RANK={number}" for name in ("HOROVOD", "OMPI_COMM_WORLD")})

    def _find(self, command: str, variables: set[str]) -> int:
        for process in self.processes():
            words = _text(Path(f"/proc/{process}/cmdline")).split("\0")
            environment = set(_text(Path(f"/proc/{process}/environ")).split("\0"))
            # `resume` starts the program by -c.
            ours = words[1:2] in (["-m"], ["-c"]) and words[3:4] == [command]
            if ours and (not variables or variables & environment):
                return process
        raise AssertionError(f"found no process that runs {command}, {variables}")

    def stop(self, number: int) -> int:
        """Stop a rank as a debugger does, and wait until all its threads stand still: its process id."""
        rank = self.rank(number)
        os.kill(rank, signal.SIGSTOP)
        end = time.monotonic() + PATIENCE_S
        threads = Path(f"/proc/{rank}/task")
        while any(_text(path).rpartition(") ")[2][:1] not in "T" for path in threads.glob("*/stat")):
            assert time.monotonic() < end
            time.sleep(0.01)
        return rank

    def processes(self) -> list[int]:
        """All of its processes that there are."""
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if self.mark in _text(path)]

    def await_no_process(self) -> None:
        """Wait until nothing of it is left."""
        end = time.monotonic() + 240
        while left := self.processes():
            assert time.monotonic() < end, left
            time.sleep(0.05)


# Faults of ranks at a test's word, as sitecustomize.py in a directory of PYTHONPATH: SIGUSR2 raises an exception, in as
# many frames as TensorFlow has at most; the file watchdog-RANK beside it ends the rank as one does that finds a stall,
# whatever its other threads wait for.
FAULTS = """
import os, pathlib, signal, sys, threading, time

def fail(number, frame):
    deeper(40)

def deeper(left):
    if not left:
        raise RuntimeError("words of a rank that fails")
    call(left)

def call(left):
    deeper(left - 1)

def watch(file):
    while not file.exists():
        time.sleep(0.05)
    print("words of a watchdog", file=sys.stderr, flush=True)
    os._exit(3)

rank = os.environ.get("HOROVOD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank:
    signal.signal(signal.SIGUSR2, fail)
    file = pathlib.Path(__file__).with_name(f"watchdog-{rank}")
    threading.Thread(target=watch, args=[file], daemon=True).start()
"""
LAUNCH = [sys.executable, "-m", "bert_horovod", "launch"]


def here(command: list, **options) -> subprocess.Popen:
    """Start a command on this host."""
    return subprocess.Popen(command, start_new_session=True, env=clean_environment(**YIELD), **options)


@contextlib.contextmanager
def launched(
    command: list, directory: Path, mark: str, start: Callable[..., subprocess.Popen] = here
) -> Iterator[Launched]:
    """Start LAUNCH, or a script that does; at the end, nothing of it is left, whatever happened.

    Args:
        command: with its arguments.
        directory: where its standard output and error go.
        mark: what the command lines of all its processes have in them, and no other's.
        start: takes the command, stdout and stderr.
    """
    launch = Launched(command, directory, mark, start)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            for process in launch.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            launch.process.wait()
        launch.await_no_process()


def listening(process: int | str) -> int:
    """How many ports a process of this host listens on, in this network namespace."""
    files = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            files.add(os.readlink(descriptor))
        except OSError:  # closed meanwhile
            continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return sum(line[3] == "0A" and f"socket:[{line[9]}]" in files for line in lines)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
