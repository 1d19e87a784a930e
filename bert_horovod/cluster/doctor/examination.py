"""Examine the hosts of a run before the run: all checks, each after those that it depends on."""

import contextlib
import functools
import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_horovod.cluster.doctor import checks, network_checks
from bert_horovod.cluster.doctor.all_reduce import LIMIT_S, MARK
from bert_horovod.cluster.doctor.ask import ask_all
from bert_horovod.cluster.doctor.checks import FAILED, Check
from bert_horovod.cluster.doctor.facts import Facts, interfaces
from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.cluster.launching.rank_variables import for_ranks
from bert_horovod.runtime.children import end_with_parent, tested_versions
from bert_horovod.wording import counted

THIS_HOST = "localhost"
# The most that is expected of one TCP connection, even on a faster interface, because one core feeds it.
_STREAM_BITS_PER_S = 10e9


@dataclass
class Doctor:
    """The user's request, and after `examine` its results."""

    hosts: Hosts = field(default_factory=dict)  # empty: this host alone
    source: str = ""  # of hosts that are a scheduler's
    network_interface: str | None = None
    ssh_port: int | None = None
    expected_bits_per_s: float | None = None
    output_dir: str | None = None
    facts: dict[str, Facts] = field(default_factory=dict)
    interface: str | None = None
    slots: Hosts = field(default_factory=dict)
    measured: Facts | None = None  # the JSON that bert_horovod.cluster.doctor.all_reduce prints

    def examine(self) -> Iterator[Check]:
        """Yield every check as soon as it is made; a warning replaces the all-reduce if a check before it failed."""
        failed = False
        for check in self.examine_facts():
            failed |= check.level == FAILED
            yield check
        if failed:
            yield Check("all-reduce", checks.WARNING, "not tried while a check above fails")
        else:
            yield self._all_reduce()

    def start_line(self, which: list[str]) -> str:
        """A command to copy, which starts a run on these hosts."""
        words = ["bert-horovod", "launch", "-np", str(sum(self.slots.values())), *which]
        words += ["--network_interfaces", interface] if (interface := self._launch_interface()) else []
        words += ["--ssh_port", str(self.ssh_port)] if self.ssh_port else []
        words += ["--", "pretrain", "--recipe", "bert-base"]
        output_dir = str(Path(self.output_dir).absolute()) if self.output_dir else "OUTPUT"
        return shlex.join([*words, "--data_dir", "DATA", "--output_dir", output_dir])

    def _launch_interface(self) -> str | None:
        """The hosts' common interface; None if this host lacks it: horovodrun needs it here too, even without ranks."""
        return self.interface if self.interface in interfaces() else None

    def examine_facts(self) -> Iterator[Check]:
        """Yield the checks that only ask the hosts for facts, which takes seconds."""
        try:
            python, packages = tested_versions()
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            yield Check("versions", FAILED, f"this project is not installed here ({error})", "it is", "run/setup.sh")
            return
        if self.source:
            slots = counted(sum(self.hosts.values()), "slot")
            yield Check("job", checks.OK, f"{counted(len(self.hosts), 'host')}, {slots}, from {self.source}")
        temporary = os.environ.get("TMPDIR", "/tmp")
        directories = [temporary, *([str(Path(self.output_dir).absolute())] if self.output_dir else [])]
        answers = ask_all(self.hosts or [THIS_HOST], self.ssh_port, list(packages), directories)
        self.facts = {host: answer.facts for host, answer in answers.items() if answer.facts is not None}
        if self.hosts or not self.facts:
            yield from checks.check_ssh(answers)
        if not self.facts:
            return
        self.slots = self.hosts or {THIS_HOST: max(1, len(self.facts[THIS_HOST]["gpus"]["names"]))}
        yield from checks.check_versions(self.facts, python, packages)
        if len(self.facts) > 1:
            self.interface, interface_checks = network_checks.common_interface(self.facts, self.network_interface)
            yield from interface_checks
        yield from network_checks.check_names(self.facts, self.interface, self.network_interface is not None)
        if len(self.facts) > 1:
            yield from checks.check_clocks({host: answers[host] for host in self.facts})
        yield from checks.check_disks(self.facts, *directories)
        yield from checks.check_resources(self.facts, self.slots)
        yield from checks.check_gpus(self.facts, self.slots)

    def _all_reduce(self) -> Check:
        """Measure the all-reduce with one rank on each host; with two ranks if there is only one host."""
        hosts = list(self.slots)
        several = len(hosts) > 1
        expected = self.expected_bits_per_s or (network_checks.link_speed(self.facts) if several else None)
        if expected and not self.expected_bits_per_s:
            expected = min(expected, _STREAM_BITS_PER_S)
        environment = for_ranks(os.environ)
        if not several and self.slots[hosts[0]] < 2:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # two ranks need two GPUs, or none
        command = [
            *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "--disable-cache", "--start-timeout", "60"),
            *("-np", str(max(2, len(hosts))), "-H", ",".join(f"{host}:{1 if several else 2}" for host in hosts)),
            *(["--network-interfaces", interface] if (interface := self._launch_interface()) else []),
            *(["--ssh-port", str(self.ssh_port)] if self.ssh_port else []),
            *(
                sys.executable,
                "-m",
                "bert_horovod.cluster.doctor.all_reduce",
                str(expected or 0),
                str(network_checks.SLOW),
            ),
        ]
        output, timed_out = _run(command, environment)
        line = next((line for line in output.splitlines() if MARK in line), None)
        if line is None:
            ports = (
                "the hosts connect to each other on any port: open all between them; or name the network's interface"
            )
            failure = f"no result within {LIMIT_S} s" if timed_out else f"it failed: {_reason(output)}"
            return Check(
                "all-reduce",
                FAILED,
                failure,
                "an all-reduce",
                f"{ports}: --network_interfaces. To see all of it: {shlex.join(command)}",
            )
        self.measured = json.loads(line[line.index(MARK) :])
        check = network_checks.check_all_reduce(self.measured, hosts, expected)
        return check if several else replace(check, found=f"{check.found} (within this host)")


def _run(command: list[str], environment: dict[str, str]) -> tuple[str, bool]:
    """Run a launcher; returns what it and its ranks print, and whether it was ended after LIMIT_S.

    The launcher gets its own session, so that Ctrl-C reaches this process alone: this process then sends the launcher
    one SIGTERM, and the launcher ends its ranks.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=functools.partial(end_with_parent, os.getpid()),
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)[0], False
        except BaseException as error:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return process.communicate()[0] or "", True
            raise


def _reason(output: str) -> str:
    """The line with the reason, from the output of a horovodrun that failed and of its ranks."""
    lines = [line for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "what():" in line or "Error" in line or "error:" in line or "denied" in line]
    line = (telling or lines or ["no word"])[0]
    line = line.partition(">:")[2].strip() or line.strip()
    return re.sub(r"\[\S+:\d+\] ", "", line)  # without the place in Gloo's source
