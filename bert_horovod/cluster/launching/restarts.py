"""Run a command's ranks; after a failure start the command again on the healthy hosts, where the run resumes."""

import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from bert_horovod.cluster.doctor.ask import is_here, ssh
from bert_horovod.cluster.doctor.checks import FAILED
from bert_horovod.cluster.doctor.examination import Doctor
from bert_horovod.cluster.launching.deadline import exit_code
from bert_horovod.cluster.launching.hostfiles import Hosts, in_kubernetes
from bert_horovod.cluster.launching.launcher import (
    ANY_KEY,
    AttemptOutcome,
    LaunchPlan,
    check_plan,
    run_ranks,
    say,
    signal_name,
)
from bert_horovod.cluster.launching.leftovers import LIMIT_S, sweep
from bert_horovod.errors import UserError
from bert_horovod.runtime.stopping import heeded

FIRST_PAUSE_S = 3.0  # doubled at every restart
MOST_PAUSE_S = 60.0
_POLL_S = 10.0  # between two examinations of hosts that are waited for


class _Interrupted(BaseException):
    """A stop signal came while no rank was running."""


@dataclass(frozen=True)
class Again:
    """How often a run is started again, and on which hosts."""

    restarts: int = 0
    read_hosts: Callable[[], Hosts] | None = None  # reads them anew; None: they stay those of the plan
    may_grow: bool = False  # to more ranks than the plan's, if there are more slots
    wait_s: float = 0.0  # at most so long for as many slots as the plan has ranks


def launch_with_restarts(plan: LaunchPlan, again: Again = Again()) -> int:
    """Run the ranks to their end; if they fail, or a host goes away, run them again on the healthy hosts.

    A restart has min(plan.ranks, slots of these hosts) ranks. All processes of a failed attempt are killed on every
    host that can be reached. Signals: see launcher.run_ranks; between attempts any of them ends this function.

    Returns the exit code: 0 at the run's end and after an orderly stop (see _code), 2 for UserError, 4 for WrongDevice,
    128 + n if signal n killed the ranks or came between attempts, else 1. Raises UserError if the plan cannot be
    started.
    """
    check_plan(plan)
    part = plan  # on the healthy hosts alone
    attempts: list[str] = []
    suspects: set[str] = set()  # hosts on which a rank computed wrongly
    used: Hosts = {}  # in any attempt
    for restart in range(1, again.restarts + 2):
        attempts.append(uuid.uuid4().hex)
        used |= part.hosts
        outcome = run_ranks(part, attempts[-1])
        if outcome.code == 0 and not outcome.again:
            return _code(outcome)
        starts_again = outcome.again and restart <= again.restarts
        suspects |= set(outcome.suspects)
        try:
            with _interruptible():
                unasked = sweep(used, plan.ssh_port, attempts)
                if not starts_again:
                    return _code(outcome)
                pause_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** (restart - 1))
                say(f"restart {restart} of {again.restarts} in {pause_s:g} s")
                time.sleep(pause_s)
                hosts = _await_hosts(plan, again, suspects)
                sweep(unasked & set(hosts), plan.ssh_port, attempts)  # hosts that can be reached again
        except _Interrupted as interrupted:
            number = interrupted.args[0]
            if starts_again:
                say(f"{signal_name(number)}: not restarted; no rank runs, and the same command resumes")
            return 128 + number
        if not hosts:
            say("error: no host is left to restart on; see what mends them: bert-horovod doctor")
            return _code(outcome) or 1
        slots = sum(hosts.values())
        ranks = slots if again.may_grow else min(plan.ranks, slots)
        part = replace(plan, hosts=hosts, ranks=ranks, ranks_may_live=bool(unasked - set(hosts)))
        hosts_text = ", ".join(f"{host}:{slots}" for host, slots in hosts.items())
        say(f"restart {restart} of {again.restarts} with {part.ranks} rank(s) on {hosts_text}")
    raise AssertionError("the last attempt returns")


def _code(outcome: AttemptOutcome) -> int:
    """The exit code; in a pod not 0 after a signal: Kubernetes would take the job for complete, and end it."""
    if outcome.code == 0 and outcome.asked_by is not None and in_kubernetes():
        return 128 + outcome.asked_by
    return outcome.code


def _await_hosts(plan: LaunchPlan, again: Again, suspects: Set[str]) -> Hosts:
    """The hosts to go on with, examined again until they have a slot for each rank, or wait_s is over."""
    end = time.monotonic() + again.wait_s
    before: list[str] = []
    while True:
        present = replace(plan, hosts=_read_anew(plan.hosts, again))
        hosts, messages = well(present, next(iter(plan.hosts)), suspects)
        for message in messages:
            if message not in before:
                say(message)
        slots, left_s = sum(hosts.values()), end - time.monotonic()
        if slots >= plan.ranks or left_s <= 0:
            return hosts
        if not before:
            say(f"{slots} of {plan.ranks} slots are there; waiting for the others, at most {left_s:.0f} s")
        before = [*messages, "waiting"]
        time.sleep(min(_POLL_S, left_s))


def _read_anew(hosts: Hosts, again: Again) -> Hosts:
    if again.read_hosts is None:
        return hosts
    try:
        return again.read_hosts()
    except UserError as error:
        say(f"warning: {error}; going on with the hosts before")
        return hosts


def well(plan: LaunchPlan, begins_with: str, suspects: Set[str] = frozenset()) -> tuple[Hosts, list[str]]:
    """The plan's hosts except `suspects`, and those that the doctor's checks or plan.stop_when exclude; and messages.

    Leaves out the doctor's all-reduce, because its failure would not tell which host to leave out. `begins_with` is the
    host that rank 0 was meant for: any other must see the run. If all hosts are suspects, none is left out for that.
    """
    messages: list[str] = []
    interfaces = plan.network_interfaces
    doctor = Doctor(
        plan.hosts,
        network_interface=interfaces if "," not in (interfaces or ",") else None,
        ssh_port=plan.ssh_port,
    )
    why: dict[str, list[str]] = {}
    if suspects >= set(plan.hosts):
        messages.append("a rank computed wrongly on each host that is left: going on with them")
    else:
        why = {host: ["a rank there computed wrongly"] for host in plan.hosts if host in suspects}
    for examined in doctor.examine_facts():
        if examined.level != FAILED:
            continue
        if not examined.hosts:
            messages.append(f"{examined.name}: {examined.found}; expected {examined.expected}")
        for host in examined.hosts:
            why.setdefault(host, []).append(f"{examined.name}: {examined.found.removeprefix(f'{host}: ')}")
    hosts = {host: slots for host, slots in plan.hosts.items() if host not in why}
    for host in _leaving(plan.stop_when, hosts, plan.ssh_port) if plan.stop_when else ():
        why[host] = ["--stop_when says that it goes away"]
        del hosts[host]
    messages += [f"leaving out {host}: {'; '.join(reasons)}" for host, reasons in why.items()]
    ordered = _begin_with_one_that_sees_the_run(plan, hosts, begins_with)
    if hosts and not ordered:
        run = cast(Path, plan.stop_file).parent
        messages.append(f"leaving out {', '.join(hosts)}: no {run} there, as rank 0 needs")
    return ordered, messages


def _leaving(stop_when: str, hosts: Hosts, ssh_port: int | None) -> list[str]:
    """The hosts on which pretrain's --stop_when now ends with 0; all are asked at once."""

    def leaves(host: str) -> bool:
        words = ["sh", "-c", stop_when]
        return exit_code(words if is_here(host) else ssh(host, ssh_port, words, "-n", *ANY_KEY)) == 0

    with ThreadPoolExecutor(max_workers=64) as pool:
        return [host for host, yes in zip(hosts, pool.map(leaves, hosts), strict=True) if yes]


def _begin_with_one_that_sees_the_run(plan: LaunchPlan, hosts: Hosts, begins_with: str) -> Hosts:
    """The hosts, beginning with one that sees the run's directory: else rank 0 would begin a new run unnoticed."""
    run = plan.stop_file.parent if plan.stop_file else None
    if run is None or not run.is_dir() or not hosts or next(iter(hosts)) == begins_with:
        return hosts
    for host in hosts:
        words = ["test", "-d", str(run)]
        command = words if is_here(host) else ssh(host, plan.ssh_port, words, "-n", *ANY_KEY)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode == 0:
                return {host: hosts[host], **hosts}
    return hosts if plan.has_mirror else {}


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Within this context a stop signal raises _Interrupted."""

    def interrupt(number: int, _frame: object) -> None:
        raise _Interrupted(number)

    numbers = heeded()
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
