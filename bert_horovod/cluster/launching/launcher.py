"""Run ranks under horovodrun or mpirun, and handle their signals, output, exit code and last lines."""

import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from bert_horovod.cluster.launching.deadline import exit_code
from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.cluster.launching.leftovers import kill_here
from bert_horovod.cluster.launching.rank import how_it_ended, signal_name
from bert_horovod.cluster.launching.rank_variables import for_mpirun, for_ranks
from bert_horovod.collectives.launched import ATTEMPT, RANKS_MAY_LIVE, UNEVEN
from bert_horovod.errors import UserError, WrongDevice
from bert_horovod.runtime.children import end_with_parent, set_up
from bert_horovod.runtime.lasting_log import PROGRAM, warn
from bert_horovod.runtime.stopping import LEAVING, STOP_SIGNALS, heeded, is_same_request

KEPT_LINES = 300  # of each rank's output, printed if it fails; TensorFlow's longest tracebacks have 150
# The longest time from the first rank's end to the launcher's end: the launcher kills the other ranks after 5 s, but it
# may wait for a host that has vanished.
ENDING_S = 10.0
_HOROVODRUN = "from bert_horovod.collectives.horovodrun import main; main()"
_TAG = re.compile(r"\[(?:\d+,)?(\d+)\]<(?:stdout|(stderr))>:")  # [rank] of horovodrun, [job,rank] of Open MPI
# The messages of horovodrun and mpirun that say which rank ended first, and with which exit code or signal.
_ENDED = (
    re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
    re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+)"),
    re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code: +(?P<code>\d+)"),
)
# Output of a rank that ended only because another rank had ended. The launcher may see the other rank's end later, if
# that rank is on another host.
_FOLLOWED = re.compile(r"Horovod has been shut down|gloo.*(?:closed by peer|reset by peer|Broken pipe|Timed out)")
_WRONG = re.compile(r"rank (\d+) on \S+ computes wrongly")  # of training/hooks/replay.py
_SILENT = re.compile(r"rank (\d+) on \S+ gives no sign of life")  # of training/hooks/watchdog.py
# TCP keep-alive (time and interval in s, number of probes) with which mpirun notices a vanished host and ends: with
# its own settings that takes 8 minutes.
_KEEPALIVE = {"time": "10", "intvl": "5", "probes": "4"}
_NOT_EXPORTED = re.compile(r".*CUDA_VISIBLE_DEVICES")  # valid on this host only; horovodrun does not pass it on either
ANY_KEY = ("-o", "StrictHostKeyChecking=no")  # of a host, as horovodrun does
say = warn  # signal handlers must not print
_TERMINATED = 128 + signal.SIGTERM  # the launcher ended the rank, after another rank's end


@dataclass(frozen=True)
class LaunchPlan:
    """The command to start, its hosts and number of ranks, and how to start it."""

    ranks: int
    hosts: Hosts
    command: list[str]  # and its arguments, after `bert-horovod`
    stop_file: Path | None  # if it exists the ranks save and stop; None: the command has no such file
    network_interfaces: str | None = None
    ssh_port: int | None = None
    mpi: bool = False
    ranks_may_live: bool = False  # see collectives/launched.py
    variables: tuple[str, ...] = ()  # further environment variables for the ranks, named by the user
    stop_when: str | None = None  # the command's own --stop_when
    has_mirror: bool = False  # of its checkpoints, so that rank 0 may begin where the run's directory is not


@dataclass(frozen=True)
class AttemptOutcome:
    """How an attempt at a run ended."""

    code: int  # 0 at the run's end and after an orderly stop, UserError's and WrongDevice's, 128 + n if killed, else 1
    again: bool  # whether another attempt may succeed: nobody asked the whole run to stop, and it was no UserError
    asked_by: int | None = None  # the signal that led to an orderly stop, of the launcher or of a rank
    suspects: tuple[str, ...] = ()  # hosts of ranks that computed wrongly


def check_plan(plan: LaunchPlan) -> None:
    """Raise UserError if the plan cannot be started."""
    if importlib.util.find_spec("horovod") is None:
        raise UserError(
            f"found no Horovod, which joins the ranks; {set_up()} builds it; one process works without: leave out "
            "`launch` and its flags"
        )
    if plan.mpi and shutil.which("mpirun") is None:
        raise UserError("found no mpirun on PATH; load or install Open MPI, or leave --mpi away")
    existing = [name for _, name in socket.if_nameindex()]
    for name in filter(None, (plan.network_interfaces or "").split(",")):
        if name not in existing:
            raise UserError(
                f"--network_interfaces {plan.network_interfaces}: this host has no network interface {name!r}; it has "
                f"{', '.join(existing)}"
            )
    for_ranks(os.environ, plan.variables)
    if plan.ranks > sum(plan.hosts.values()):
        raise UserError(
            f"-np {plan.ranks} is more than the slots of the hosts, {sum(plan.hosts.values())} on {len(plan.hosts)}; "
            "give fewer ranks, more hosts or more slots"
        )


def run_ranks(plan: LaunchPlan, attempt: str) -> AttemptOutcome:
    """Run the ranks to their end; if one fails, the others end within half a minute.

    The first SIGTERM, SIGINT, SIGHUP or SIGUSR1 creates the stop file, which asks all ranks to save at the same step
    and end; a second signal kills the ranks. They also end if this process ends, for whatever reason.
    """
    return _Ranks(plan, attempt).run()


def command_line(plan: LaunchPlan, environment: Mapping[str, str]) -> list[str]:
    """The command of horovodrun or mpirun; the ranks get the same interpreter and environment on every host."""
    rank = [sys.executable, "-m", "bert_horovod", *plan.command]
    hosts = ["-np", str(plan.ranks), "-H", ",".join(f"{host}:{slots}" for host, slots in plan.hosts.items())]
    interfaces = plan.network_interfaces
    if not plan.mpi:
        words = [sys.executable, "-u", "-c", _HOROVODRUN, "--gloo", "--disable-cache", *hosts]
        words += ["--network-interfaces", interfaces] if interfaces else []
        words += ["--ssh-port", str(plan.ssh_port)] if plan.ssh_port else []
        return words + rank
    words = ["mpirun", "--allow-run-as-root", "--tag-output", *hosts, "-bind-to", "none", "-map-by", "slot"]
    words += ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]  # as Horovod's documentation says for Open MPI
    words += [word for name, value in _KEEPALIVE.items() for word in ("-mca", f"oob_tcp_keepalive_{name}", value)]
    if interfaces:
        words += ["-mca", "btl_tcp_if_include", interfaces, "-mca", "oob_tcp_if_include", interfaces]
    words += ["-mca", "plm_rsh_args", f"-p {plan.ssh_port}"] if plan.ssh_port else []
    for name in sorted(environment):
        words += [] if _NOT_EXPORTED.fullmatch(name) else ["-x", name]
    return words + rank


class _Ranks:
    def __init__(self, plan: LaunchPlan, attempt: str) -> None:
        self.plan = plan
        self.attempt = attempt
        self.lines: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self.begun: dict[tuple[str, str | None], str] = {}  # (rank, stream) -> the beginning of an unfinished line
        self.launchers_lines: list[str] = []  # of horovodrun or mpirun itself
        self.traceback = False  # rank 0 prints one: held back until the rank that failed first is known
        self.wrong: set[int] = set()  # ranks that computed wrongly, as the run says
        self.silent: set[int] = set()  # ranks that, as another one says, were stopped, dead or cut off
        self.began = False  # rank 0 has printed a line: it holds the output directory's lock
        self.asked_by: int | None = None  # the first signal
        self.asked_at = 0.0  # by time.monotonic
        self.killed_by: int | None = None  # the second signal
        self.process: subprocess.Popen | None = None
        self.ending: threading.Timer | None = None  # started at the first rank's end

    def run(self) -> AttemptOutcome:
        environment = self._environment()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until there is a process to stop
        try:
            self.process = subprocess.Popen(
                command_line(self.plan, environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=for_mpirun(os.environ) | environment if self.plan.mpi else environment,
                start_new_session=True,  # so that Ctrl-C reaches this process alone
                preexec_fn=functools.partial(_bind_to_launcher, os.getpid()),
            )
            for number in heeded():
                signal.signal(number, self._on_signal)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            for line in cast(IO[str], self.process.stdout):
                self._take(line)
        finally:
            if self.ending:
                self.ending.cancel()
            if self.process.poll() is None and sys.exc_info()[0]:
                self.process.kill()
        for (rank, error), text in self.begun.items():
            self._show(int(rank), bool(error), f"{text}\n")
        code = self.process.wait()
        if self.killed_by:
            return AttemptOutcome(128 + self.killed_by, again=False)
        ended = _ends("".join(self.launchers_lines))
        left = [rank for rank, rank_code in ended.items() if rank_code == LEAVING]
        if code == 0 or left:
            _print_error("".join(self.lines[0]))
            if left and not self._asked_to_stop():
                say(f"the host of rank {left[0]}, {self._host(left[0])}, goes away: the ranks have saved and stopped")
                return AttemptOutcome(0, again=True, asked_by=signal.SIGTERM)
            return AttemptOutcome(0, again=False, asked_by=self.asked_by)
        code = self._explain(code)
        again = code != UserError.exit_code and not self._asked_to_stop()
        suspects = [self._host(rank) for rank in self.wrong] if code == WrongDevice.exit_code else []
        return AttemptOutcome(code, again, suspects=tuple(suspects))

    def _environment(self) -> dict[str, str]:
        uneven = len(set(Counter(map(self._host, range(self.plan.ranks))).values())) > 1
        ours = {ATTEMPT: self.attempt, RANKS_MAY_LIVE: "1" * self.plan.ranks_may_live, UNEVEN: "1" * uneven}
        environment = for_ranks(os.environ, self.plan.variables, self.plan.network_interfaces)
        return environment | {name: value for name, value in ours.items() if value}

    def _asked_to_stop(self) -> bool:
        """Whether somebody asked, by a signal or by the stop file (rank 0 removes an old one when it begins)."""
        return self.asked_by is not None or bool(self.began and self.plan.stop_file and self.plan.stop_file.exists())

    def _take(self, line: str) -> None:
        """Handle a line of output: a message of horovodrun itself, or pieces of ranks' output, each after a tag."""
        own, *pieces = _TAG.split(line)
        if own.startswith(f"{PROGRAM}warning: "):
            _print_error(own)
        elif own.strip():
            self.launchers_lines.append(own)
            if not self.ending and _ends("".join(self.launchers_lines)):
                self.ending = threading.Timer(ENDING_S, kill_here, [[self.attempt]])
                self.ending.daemon = True
                self.ending.start()
        for rank, error, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            whole = self.begun.pop((rank, error), "") + text
            if whole.endswith("\n"):
                self._show(int(rank), bool(error), whole)
            else:
                self.begun[rank, error] = whole

    def _show(self, rank: int, error: bool, line: str) -> None:
        """Print a line of rank 0; keep a line of another rank.

        From a traceback on, rank 0's standard error is kept too: these may be its last lines, and only the rank that
        failed first gets its last lines printed. If rank 0 then prints to standard output, it has not ended.
        """
        if error and line.startswith(f"{PROGRAM}error: "):
            self.wrong |= {int(number) for number in _WRONG.findall(line)}
        if error and (silent := _SILENT.search(line.replace(": gives", " gives"))):
            self.silent.add(int(silent[1]))
        self.traceback |= error and rank == 0 and line.startswith("Traceback (most recent call last)")
        if rank or (error and self.traceback):
            self.lines[rank].append(line)
        elif error:
            _print_error(line)
        else:
            if self.traceback:
                _print_error("".join(self.lines.pop(0)))
                self.traceback = False
            print(line, end="", flush=True)
            if not self.began:
                self.began = True
                if self.asked_by and self.plan.stop_file:
                    self._ask_to_stop(self.asked_by, self.plan.stop_file)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.asked_by is None:
            self.asked_by, self.asked_at = number, time.monotonic()
            if self.plan.stop_file and self.began:
                self._ask_to_stop(number, self.plan.stop_file)
            elif self.plan.stop_file:
                say(f"{signal_name(number)}: the ranks will stop as soon as they have started; once more kills")
            else:
                self._kill(number)
        elif not is_same_request(number, time.monotonic() - self.asked_at):
            self._kill(number)

    def _ask_to_stop(self, number: int, stop_file: Path) -> None:
        from bert_horovod.cluster.doctor.ask import ssh

        asked = f"{signal_name(number)}: asked the ranks to save and stop ({stop_file}); once more kills"
        if not stop_file.parent.is_dir():  # it is on a disk of rank 0's host
            host = self._host(0)
            words = ssh(host, self.plan.ssh_port, ["touch", str(stop_file)], "-n", *ANY_KEY)
            cannot = f"cannot ask the ranks to stop: no {stop_file.parent} here nor, by ssh, on {host}; once more kills"
            # In a thread, because a signal's handler may call this, and the ranks' output must be read meanwhile.
            threading.Thread(target=lambda: say(asked if exit_code(words) == 0 else cannot)).start()
            return
        try:
            stop_file.touch()
            say(asked)
        except OSError as error:
            say(f"cannot ask the ranks to stop, {stop_file}: {error.strerror}; once more kills")

    def _kill(self, number: int) -> None:
        self.killed_by = number
        say(f"{signal_name(number)}: killing the ranks")
        kill_here([self.attempt])  # ranks on other hosts end by themselves: see cluster/launching/rank.py

    def _explain(self, launchers_code: int) -> int:
        """Print which rank failed, how, and its last lines; returns the exit code."""
        messages = "".join(self.launchers_lines)
        ended = _ends(messages)
        if not ended:
            _print_error("".join(self.lines[0]))
            messages, _, traceback = messages.partition("Traceback (most recent call last)")
            messages = (messages + traceback.rpartition("Error: ")[2]).strip() or how_it_ended(launchers_code)
            say(f"error: {'mpirun' if self.plan.mpi else 'horovodrun'} failed: {messages}")
            return 1
        rank = self._first(ended)
        code = ended.get(rank, 1)
        _print_error("".join(self.lines[rank]))
        if code in (UserError.exit_code, WrongDevice.exit_code):  # the rank's last lines explain it
            return code
        host = self._host(rank)
        text = f"rank {rank} on {host} ended first, with {how_it_ended(code, self._by_ssh(host, code))}"
        if silent := self.silent - {rank}:
            who = " and ".join(f"rank {each} on {self._host(each)}" for each in sorted(silent))
            text = f"{who} gave no sign of life; of those that noticed it {text}"
        say(f"error: {text}")
        return 1

    def _host(self, rank: int) -> str:
        return [host for host, slots in self.plan.hosts.items() for _ in range(slots)][rank]

    def _by_ssh(self, host: str, code: int) -> bool:
        """Whether a killed rank's code is that of horovodrun's ssh client for another host."""
        from bert_horovod.cluster.doctor.ask import is_here

        return code == 128 + signal.SIGKILL and not self.plan.mpi and not is_here(host)

    def _first(self, ended: dict[int, int]) -> int:
        """The rank that failed first, by exit codes in the order in which the launcher saw ranks end because of it."""
        first = next(iter(ended))
        words = {rank: "".join(lines) for rank, lines in self.lines.items()}
        leaders = [rank for rank in {**ended, **words} if not _FOLLOWED.search(words.get(rank, ""))]
        if first in leaders:
            return first
        for rank in leaders:
            if ended.get(rank, _TERMINATED) != _TERMINATED or "Traceback (" in words.get(rank, ""):
                return rank
        return first


def _ends(messages: str) -> dict[int, int]:
    """The exit codes of the ranks that failed, by rank, in the order of horovodrun's or mpirun's messages."""
    matches = sorted(
        (match for pattern in _ENDED for match in pattern.finditer(messages)), key=lambda match: match.start()
    )
    ended: dict[int, int] = {}
    for match in matches:
        fields = match.groupdict()
        ended.setdefault(int(match["rank"]), int(fields.get("code") or 128 + int(fields.get("signal") or 0)))
    return ended


def _bind_to_launcher(launcher: int) -> None:
    """Between fork and exec: let the child die with this process, and ignore signals that a scheduler sends to all."""
    end_with_parent(launcher)
    # SIG_IGN protects horovodrun's shells, which clear the mask; the mask protects mpirun, which sets handlers.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _print_error(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
