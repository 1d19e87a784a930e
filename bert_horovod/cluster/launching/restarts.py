"""Run a command's ranks; after a failure start the command again on the healthy hosts, where the run resumes."""

import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from bert_horovod.cluster.doctor.ask import is_here, ssh
from bert_horovod.cluster.doctor.checks import FAILED
from bert_horovod.cluster.doctor.examination import Doctor
from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.cluster.launching.launcher import LaunchPlan, check, run_ranks, say, signal_name
from bert_horovod.cluster.launching.leftovers import LIMIT_S, sweep
from bert_horovod.runtime.stopping import heeded

FIRST_PAUSE_S = 3.0  # doubled at every restart
MOST_PAUSE_S = 60.0


class _Interrupted(BaseException):
    """A stop signal came while no rank was running."""


def launch(plan: LaunchPlan, restarts: int = 0) -> int:
    """Run the ranks to their end; after a failure run them again, at most `restarts` times, on the healthy hosts.

    A restart has min(plan.ranks, slots of these hosts) ranks. All processes of a failed attempt are killed on every
    host that can be reached. Signals: see launcher.run_ranks; between attempts any of them ends this function.

    Returns the exit code: 0 at the run's end and after an orderly stop, 2 for UserError, 128 + n if signal n killed
    the ranks or came between attempts, else 1. Raises UserError if the plan cannot be started.
    """
    check(plan)
    part = plan  # on the healthy hosts alone
    attempts: list[str] = []
    for restart in range(1, restarts + 2):
        attempts.append(uuid.uuid4().hex)
        outcome = run_ranks(part, attempts[-1])
        if outcome.code == 0:
            return 0
        again = outcome.again and restart <= restarts
        try:
            with _interruptible():
                unasked = sweep(plan.hosts, plan.ssh_port, attempts)
                if not again:
                    return outcome.code
                pause_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** (restart - 1))
                say(f"restart {restart} of {restarts} in {pause_s:g} s")
                time.sleep(pause_s)
                hosts = well(plan)
                sweep(unasked & set(hosts), plan.ssh_port, attempts)  # hosts that can be reached again
        except _Interrupted as interrupted:
            number = interrupted.args[0]
            if again:
                say(f"{signal_name(number)}: not restarted; no rank runs, and the same command resumes")
            return 128 + number
        if not hosts:
            say("error: no host is left to restart on; see what mends them: bert-horovod doctor")
            return outcome.code
        ranks = min(plan.ranks, sum(hosts.values()))
        part = replace(plan, hosts=hosts, ranks=ranks, ranks_may_live=bool(unasked - set(hosts)))
        hosts_text = ", ".join(f"{host}:{slots}" for host, slots in hosts.items())
        say(f"restart {restart} of {restarts} with {part.ranks} rank(s) on {hosts_text}")
    raise AssertionError("the last attempt returns")


def well(plan: LaunchPlan) -> Hosts:
    """The plan's hosts except those that, by the doctor's checks, cause a failure; prints which and why.

    Leaves out the doctor's all-reduce, because its failure would not tell which host to leave out.
    """
    interfaces = plan.network_interfaces
    doctor = Doctor(plan.hosts, interfaces if "," not in (interfaces or ",") else None, plan.ssh_port)
    why: dict[str, list[str]] = {}
    for examined in doctor.examine_facts():
        if examined.level != FAILED:
            continue
        if not examined.hosts:
            say(f"{examined.name}: {examined.found}; expected {examined.expected}")
        for host in examined.hosts:
            why.setdefault(host, []).append(f"{examined.name}: {examined.found.removeprefix(f'{host}: ')}")
    for host, reasons in why.items():
        say(f"leaving out {host}: {'; '.join(reasons)}")
    return _begin_with_one_that_sees_the_run(plan, {host: plan.hosts[host] for host in plan.hosts if host not in why})


def _begin_with_one_that_sees_the_run(plan: LaunchPlan, hosts: Hosts) -> Hosts:
    """The hosts, beginning with one that sees the run's directory: else rank 0 would begin a new run unnoticed."""
    run = plan.stop_file.parent if plan.stop_file else None
    if run is None or not run.is_dir() or not hosts or next(iter(hosts)) == next(iter(plan.hosts)):
        return hosts
    for host in hosts:
        words = ["test", "-d", str(run)]
        command = words if is_here(host) else ssh(host, plan.ssh_port, words, "-n", "-o", "StrictHostKeyChecking=no")
        with contextlib.suppress(subprocess.TimeoutExpired):
            if subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode == 0:
                return {host: hosts[host], **hosts}
    say(f"leaving out {', '.join(hosts)}: no {run} there, as rank 0 needs")
    return {}


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
