"""Ranks under horovodrun, with signals, output, exit code and last words of our own."""

import ctypes
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bert_horovod.cluster.hostfiles import Hosts
from bert_horovod.cluster.rank import STOP_SIGNALS
from bert_horovod.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]
KEPT_LINES = 60  # of each rank, for its last words
# Its own handlers would kill the ranks at a signal that a scheduler sends to all processes of a job.
_HOROVODRUN = (
    "import signal; signal.signal = lambda *ignored: None; "
    "from horovod.runner.launch import run_commandline; run_commandline()"
)
_TAG = re.compile(r"\[(?:\d+,)?(\d+)\]<(?:stdout|(stderr))>:")  # [rank] of horovodrun, [job,rank] of Open MPI
# The ways in which horovodrun and mpirun tell which rank ended first, and how.
_ENDED = (
    re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
    re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+)"),
    re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code: +(?P<code>\d+)"),
)
_NOT_EXPORTED = re.compile(r"BASH_FUNC_.*|OLDPWD|.*CUDA_VISIBLE_DEVICES|_")  # horovodrun passes on all but these too
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Plan:
    """What to start, and where."""

    ranks: int
    hosts: Hosts
    command: list[str]  # of bert-horovod
    stop_file: Path | None  # where the command looks for a request to stop, if it does
    network_interfaces: str | None = None
    ssh_port: int | None = None
    mpi: bool = False


def launch(plan: Plan) -> int:
    """Run the ranks to their end.

    The first SIGTERM, SIGINT or SIGUSR1 makes the file that asks all ranks to save at the same step and end; a second
    SIGTERM or SIGINT kills them. They also end if this process does, whatever ends it.

    Returns the exit code: 0 at the run's end and after an orderly stop, 2 for a user's mistake, 128 + n after being
    killed by signal n, else 1. Raises UserError where nothing can be started.
    """
    if importlib.util.find_spec("horovod") is None:
        raise UserError("found no Horovod, which joins the ranks; run/setup.sh builds it")
    if plan.mpi and shutil.which("mpirun") is None:
        raise UserError("found no mpirun on PATH; load or install Open MPI, or leave --mpi away")
    if plan.ranks > sum(plan.hosts.values()):
        raise UserError(
            f"-np {plan.ranks} is more than the slots of the hosts, {sum(plan.hosts.values())} on {len(plan.hosts)}; "
            "give fewer ranks, more hosts or more slots"
        )
    return _Ranks(plan).run()


def command_line(plan: Plan, environment: Mapping[str, str]) -> list[str]:
    """horovodrun or mpirun with all that they need; a rank gets the same interpreter and environment on every host."""
    rank = [sys.executable, "-m", "bert_horovod", *plan.command]
    hosts = ["-np", str(plan.ranks), "-H", ",".join(f"{host}:{slots}" for host, slots in plan.hosts.items())]
    interfaces = plan.network_interfaces
    if not plan.mpi:
        words = [sys.executable, "-c", _HOROVODRUN, "--gloo", "--disable-cache", *hosts]
        words += ["--network-interfaces", interfaces] if interfaces else []
        words += ["--ssh-port", str(plan.ssh_port)] if plan.ssh_port else []
        return words + rank
    words = ["mpirun", "--allow-run-as-root", "--tag-output", *hosts, "-bind-to", "none", "-map-by", "slot"]
    words += ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]  # what Horovod's pages say for Open MPI
    for layer in ("btl", "oob") if interfaces else ():
        words += ["-mca", f"{layer}_tcp_if_include", interfaces]
    words += ["-mca", "plm_rsh_args", f"-p {plan.ssh_port}"] if plan.ssh_port else []
    for name in sorted(environment):
        words += [] if _NOT_EXPORTED.fullmatch(name) else ["-x", name]
    return words + rank


class _Ranks:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self.begun: dict[tuple[str, str | None], str] = {}  # of each rank's streams: the beginning of a line
        self.launchers_lines: list[str] = []  # horovodrun's or mpirun's own
        self.traceback = False  # rank 0 is printing one: held back until it is known who is to blame
        self.began = False  # rank 0 holds the output directory
        self.asked_by: int | None = None  # the first signal
        self.killed_by: int | None = None  # the second
        self.process: subprocess.Popen | None = None

    def run(self) -> int:
        path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | {"PYTHONPATH": path}
        if self.plan.network_interfaces:
            environment.setdefault("NCCL_SOCKET_IFNAME", self.plan.network_interfaces)
        self.process = subprocess.Popen(
            command_line(self.plan, environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process alone
            preexec_fn=_bind_to_launcher,
        )
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            for line in self.process.stdout:
                self._take(line)
        finally:
            if self.process.poll() is None and sys.exc_info()[0]:
                self.process.kill()
        for (rank, error), text in self.begun.items():
            self._show(int(rank), bool(error), f"{text}\n")
        code = self.process.wait()
        if self.killed_by:
            return 128 + self.killed_by
        if code == 0:
            _print_error("".join(self.lines[0]))
            return 0
        return self._explain(code)

    def _take(self, line: str) -> None:
        """Take a line of output: pieces of what ranks printed, each after a tag, or words of horovodrun's own."""
        own, *pieces = _TAG.split(line)
        if own.strip():
            self.launchers_lines.append(own)
        for rank, error, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            whole = self.begun.pop((rank, error), "") + text
            if whole.endswith("\n"):
                self._show(int(rank), bool(error), whole)
            else:
                self.begun[rank, error] = whole

    def _show(self, rank: int, error: bool, line: str) -> None:
        """Print a line of rank 0, keep one of another."""
        self.traceback |= rank == 0 and line.startswith("Traceback (most recent call last)")
        if rank or self.traceback:
            self.lines[rank].append(line)
        elif error:
            _print_error(line)
        else:
            print(line, end="", flush=True)
            if not self.began:
                self.began = True
                if self.asked_by:
                    self._ask_to_stop()

    def _on_signal(self, number: int, frame: object) -> None:
        if self.asked_by is None:
            self.asked_by = number
            if self.plan.stop_file and self.began:
                self._ask_to_stop()
            elif self.plan.stop_file:
                _say(f"{_name(number)}: the ranks will stop as soon as they have started; once more kills")
            else:
                self._kill(number)
        elif number != signal.SIGUSR1:
            self._kill(number)

    def _ask_to_stop(self) -> None:
        try:
            self.plan.stop_file.touch()
            _say(f"{_name(self.asked_by)}: asked the ranks to save and stop ({self.plan.stop_file}); once more kills")
        except OSError as error:
            _say(f"cannot ask the ranks to stop, {self.plan.stop_file}: {error.strerror}; once more kills")

    def _kill(self, number: int) -> None:
        self.killed_by = number
        _say(f"{_name(number)}: killing the ranks")
        self.process.kill()  # the ranks follow: see cluster/rank.py

    def _explain(self, launchers_code: int) -> int:
        """Print who failed, how, and its last words; returns the exit code."""
        said = "".join(self.launchers_lines)
        found = next((match for pattern in _ENDED if (match := pattern.search(said))), None)
        if found is None:
            _print_error("".join(self.lines[0]))
            said, _, traceback = said.partition("Traceback (most recent call last)")
            said = (said + traceback.rpartition("Error: ")[2]).strip() or _how(launchers_code)
            _say(f"error: {'mpirun' if self.plan.mpi else 'horovodrun'} failed: {said}")
            return 1
        rank, fields = int(found["rank"]), found.groupdict()
        code = int(fields.get("code") or 128 + int(fields.get("signal") or 0))
        _print_error("".join(self.lines[rank]))
        if code == 2:  # a user's mistake, which the rank has explained
            return 2
        hosts = [host for host, slots in self.plan.hosts.items() for _ in range(slots)]
        _say(f"error: rank {rank} on {hosts[rank]} ended first, with {_how(code)}")
        return 1


def _bind_to_launcher() -> None:
    """Between fork and exec: die with the launcher, and leave to it the signals that a scheduler sends to all."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # SIG_IGN keeps horovodrun's shells, which clear the mask; the mask keeps mpirun, which sets handlers.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _how(code: int) -> str:
    """What an exit code tells: of a shell, 128 + n for signal n; of subprocess, -n."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return "SIGKILL: by hand, or by the kernel if the host's memory was full (see dmesg there)"
    if number in set(signal.Signals):
        return _name(number)
    return f"exit code {code}{' (ssh lost it)' if code == 255 else ''}"


def _name(number: int) -> str:
    return signal.Signals(number).name


def _say(text: str) -> None:
    os.write(2, f"bert-horovod: {text.rstrip()}\n".encode())  # signal handlers must not print


def _print_error(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
