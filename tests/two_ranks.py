"""Two real ranks that do one job after another: horovodrun takes longer to start than most jobs to run.

As a program it is what horovodrun starts; `Ranks` is what tests hold, by the fixture `two_ranks`.
"""

import contextlib
import io
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment, horovodrun, kill_tree

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World

# Between Horovod's looks for tensors: with its 1 ms, ranks that wait for a job take a seventh of a core.
CYCLE_MS = "5"


class Answer(NamedTuple):
    """What a job gave on one rank."""

    value: Any
    said: str  # standard output and error of Python


class Ranks:
    """Starts ranks with the first job, and again after one that failed."""

    def __init__(self, size: int = 2) -> None:
        self._size = size
        self._process: subprocess.Popen | None = None
        self._ranks: list[Connection] = []

    def run(self, job: Callable[..., Any], *arguments: Any, **named: Any) -> list[Answer]:
        """Call `job(world, *arguments, **named)` on all ranks, which import it by its name; the answers by rank.

        Raises:
            AssertionError: a rank raised an exception or ended, whose text this has, or took longer than
                PATIENCE_S; the ranks are killed, and the next job starts others.
        """
        if self._process is None:
            self._start()
        for rank in self._ranks:
            rank.send((job, arguments, named))
        answers: dict[int, Answer] = {}
        end = time.monotonic() + PATIENCE_S
        while len(answers) < self._size:
            waiting = [rank for i, rank in enumerate(self._ranks) if i not in answers]
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                self._fail(f"{job.__qualname__} took longer than {PATIENCE_S} s; answered: ranks {sorted(answers)}")
            for rank in ready:
                number = self._ranks.index(rank)
                try:
                    value, output, error = rank.recv()
                except (EOFError, ConnectionResetError):
                    self._fail(f"{job.__qualname__}: rank {number} ended")
                if error:
                    self._fail(f"{job.__qualname__}: rank {number} raised\n{error}\n{output}")
                answers[number] = Answer(value, output)
        return [answers[number] for number in range(self._size)]

    def close(self) -> None:
        """Let the ranks leave in order."""
        if self._process:
            for rank in self._ranks:
                rank.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                kill_tree(self._process.pid)
                self._process.wait()
            self._output.close()
            self._process = None

    def _start(self) -> None:
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(directory, "socket"))
            listener.bind(address)
            listener.listen()
            listener.settimeout(PATIENCE_S)
            self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the ranks; what C++ says
            self._process = subprocess.Popen(
                [*horovodrun(self._size), sys.executable, "-m", "tests.two_ranks", address],
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=clean_environment(HOROVOD_CYCLE_TIME=CYCLE_MS),
                cwd=PROJECT,
                start_new_session=True,
            )
            try:
                self._ranks = [Connection(listener.accept()[0].detach()) for _ in range(self._size)]
            except TimeoutError:
                self._fail(f"horovodrun started no {self._size} ranks within {PATIENCE_S} s")
        numbers = [rank.recv() for rank in self._ranks]
        self._ranks = [self._ranks[numbers.index(number)] for number in range(self._size)]

    def _fail(self, text: str) -> None:
        kill_tree(self._process.pid)
        self._process.wait()
        self._output.seek(0)
        output = self._output.read()
        self._output.close()
        for rank in self._ranks:
            rank.close()
        self._process, self._ranks = None, []
        raise AssertionError(f"{text}\n{output}")


def main(address: str) -> None:
    """A rank: do what comes over the connection until it is closed."""
    from bert_horovod.collectives.launched import launch
    from bert_horovod.collectives.starting import connect
    from bert_horovod.runtime.devices import use_devices

    world = connect(launch())  # without Horovod's timeline: its writer on rank 0 spins
    use_devices(world.local_rank, world.local_size, 1)
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(address)
        connection = Connection(plain.detach())
    connection.send(world.rank)
    with contextlib.suppress(EOFError):  # the tests are over
        while True:
            connection.send(_do(world, *connection.recv()))
    world.shutdown()


def _do(world: "World", job: Callable[..., Any], arguments: tuple, named: dict[str, Any]) -> tuple[Any, str, str]:
    """What a job returned, what it said, and the traceback of what it raised."""
    value, error, output = None, "", io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            value = job(world, *arguments, **named)
        except BaseException:
            error = traceback.format_exc()
    return value, output.getvalue(), error


if __name__ == "__main__":
    main(sys.argv[1])
