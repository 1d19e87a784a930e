"""Contestants are measured in turn, in rounds, so that they meet the same load; figures are medians over rounds."""

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bert_horovod.errors import ReportedError, RunError
from bert_horovod.measuring import bench_child
from bert_horovod.measuring.bench_child import Figure, Key
from bert_horovod.runtime.children import end_with_parent

PROJECT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """Tell on standard error what goes on."""
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """The commit that runs; "" where there is no git."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(words, cwd=PROJECT, text=True, capture_output=True, check=False).stdout.strip()
    return ""


def path() -> str:
    """Where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def variables(gpu: bool = False, **own: str) -> dict[str, str]:
    """The environment of a process that imports this project, and `own`; without `gpu` it sees no GPU."""
    imported = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return os.environ | {"PYTHONPATH": imported, "PATH": path(), "TF_CPP_MIN_LOG_LEVEL": "3"} | hidden | own


def printed(command: Sequence[object], gpu: bool = False) -> str:
    """What a command of this project prints; raises RunError with its last words."""
    words = [*map(str, command)]
    done = subprocess.run(words, env=variables(gpu), text=True, capture_output=True, check=False)
    if done.returncode:
        last = "\n  ".join(done.stderr.strip().splitlines()[-5:])
        raise RunError(f"{' '.join(words[1:4])} ended with {done.returncode}: {last}")
    return done.stdout


def program(*words: object, gpu: bool = False) -> str:
    """What `bert-horovod WORDS` prints; see `printed`."""
    return printed([sys.executable, "-m", "bert_horovod", *words], gpu)


def logged(words: Sequence[object], log: Path, core: int | None = None) -> None:
    """Run Python, on a core if one is named; it ends with this thread. Raises RunError if it fails."""
    command = [*(["taskset", "-c", core] if core is not None else []), sys.executable, *words]
    environment, bound = variables(PYTHONUNBUFFERED="1"), functools.partial(end_with_parent, os.getpid())
    with log.open("a") as file:
        streams = {"stdout": file, "stderr": file}
        done = subprocess.run([*map(str, command)], **streams, env=environment, preexec_fn=bound, check=False)
    if done.returncode:
        raise RunError(f"ended with {done.returncode}; see {log}; the same command goes on")


def reported(main: Callable[[], int]) -> Callable[[], int]:
    """A script's `main`, whose errors for people are a line on standard error and an exit code."""

    @functools.wraps(main)
    def run() -> int:
        try:
            return main()
        except ReportedError as error:
            say(f"error: {error}")
            return error.exit_code

    return run


def in_turn(contestants: Iterable[Key], rounds: int, measure: Callable[[Key, int], Figure]) -> dict[Key, list[Figure]]:
    """See bench_child.in_turn; tells on standard error each round, and who is left out."""

    def one(contestant: Key, number: int) -> Figure:
        say(f"{contestant}: round {number + 1}/{rounds}")
        return measure(contestant, number)

    return bench_child.in_turn(contestants, rounds, one, lambda who, error: say(f"{who}: left out: {error}"))


def ratio_of(one: Sequence[float], other: Sequence[float]) -> float:
    """One over the other, round by round; the median."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def peak_bytes(process: int) -> int | None:
    """A process's peak of resident memory; None where the system does not tell it, or after its end."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    return None


class Contestant:
    """A process that holds its model and runs steps when asked.

    For each number N on standard input it runs N steps and answers with a line: their seconds, a JSON list.
    `environment`: its variables; None: this process's, without PYTHONPATH, because peers have packages of their own.
    """

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.first_s = 0.0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        if environment is None:
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment = environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment, text=True, **streams)

    def ask(self, steps: int) -> list[float]:
        """Seconds of so many steps, now; raises RunError, with the process's last words, if it has died."""
        with contextlib.suppress(BrokenPipeError):  # it has died: nothing is read below
            print(steps, file=self.process.stdin, flush=True)
        for line in self.process.stdout:  # libraries may print more
            if line.startswith("["):
                return json.loads(line)
        code = self.process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        raise RunError(f"{self.name} ended with {code}: " + ("\n  ".join(words) or "it said nothing (memory?)"))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a number that it never read
                stream.close()


@contextlib.contextmanager
def started(
    commands: Iterable[tuple[str, list[str], dict[str, str] | None]], warm_up: Callable[[str], int]
) -> Iterator[dict[str, Contestant]]:
    """Contestants by name, after `warm_up` of it first steps; those that die in them are named and left out.

    `commands`: name, command and variables of each.
    """
    with contextlib.ExitStack() as stack:
        running: dict[str, Contestant] = {}
        for name, command, environment in commands:
            contestant = Contestant(name, command, environment)
            stack.callback(contestant.close)
            say(f"{name}: compiles")
            try:
                contestant.first_s = contestant.ask(warm_up(name))[0]
                running[name] = contestant
            except RunError as error:
                say(f"left out: {error}")
        yield running
