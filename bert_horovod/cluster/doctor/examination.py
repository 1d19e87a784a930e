"""Examine the hosts of a run before the run: names, interfaces and links, and all other checks in their order."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_horovod.cluster.doctor import checks
from bert_horovod.cluster.doctor.all_reduce import LIMIT_S, MARK, SLOW
from bert_horovod.cluster.doctor.ask import ask_all
from bert_horovod.cluster.doctor.checks import FAILED, OK, WARNING, Check
from bert_horovod.cluster.doctor.facts import Facts, interfaces
from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.cluster.launching.rank_variables import for_ranks
from bert_horovod.runtime.children import end_with_parent, set_up, tested_versions
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
        if self._alone:
            yield Check("all-reduce", checks.WARNING, "not tried, because it needs Horovod")
        elif failed:
            yield Check("all-reduce", checks.WARNING, "not tried while a check above fails")
        else:
            yield self._all_reduce()

    def start_line(self, which: list[str]) -> str:
        """A command to copy, which starts a run on these hosts."""
        words = ["bert-horovod"]
        if not self._alone:
            words += ["launch", "-np", str(sum(self.slots.values())), *which]
            words += ["--network_interfaces", interface] if (interface := self._launch_interface()) else []
            words += [*(["--ssh_port", str(self.ssh_port)] if self.ssh_port else []), "--"]
        words += ["pretrain", "--recipe", "bert-base"]
        output_dir = str(Path(self.output_dir).absolute()) if self.output_dir else "OUTPUT"
        return shlex.join([*words, "--data_dir", "DATA", "--output_dir", output_dir])

    @property
    def _alone(self) -> bool:
        """Whether this host alone is examined and has no Horovod: then a run is one process."""
        return not self.hosts and any(told["packages"].get("horovod") is None for told in self.facts.values())

    def _launch_interface(self) -> str | None:
        """The hosts' common interface; None if this host lacks it: horovodrun needs it here too, even without ranks."""
        return self.interface if self.interface in interfaces() else None

    def examine_facts(self) -> Iterator[Check]:
        """Yield the checks that only ask the hosts for facts, which takes seconds."""
        try:
            python, packages = tested_versions()
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            yield Check("versions", FAILED, f"this project is not installed here ({error})", "it is", set_up())
            return
        if self.source:
            slots = counted(sum(self.hosts.values()), "slot")
            yield Check("job", checks.OK, f"{counted(len(self.hosts), 'host')}, {slots}, from {self.source}")
        temporary = os.environ.get("TMPDIR") or "/tmp"
        directories = [temporary, *([str(Path(self.output_dir).absolute())] if self.output_dir else [])]
        answers = ask_all(self.hosts or [THIS_HOST], self.ssh_port, list(packages), directories)
        self.facts = {host: answer.facts for host, answer in answers.items() if answer.facts is not None}
        if self.hosts or not self.facts:
            yield from checks.check_ssh(answers)
        if not self.facts:
            return
        self.slots = self.hosts or {THIS_HOST: max(1, len(self.facts[THIS_HOST]["gpus"]["names"]))}
        yield from checks.check_versions(self.facts, python, packages, alone=self._alone)
        if len(self.facts) > 1:
            self.interface, interface_checks = common_interface(self.facts, self.network_interface)
            yield from interface_checks
        yield from check_names(self.facts, self.interface, self.network_interface is not None)
        if len(self.facts) > 1:
            yield from checks.check_clocks({host: answers[host] for host in self.facts})
        yield from checks.check_disks(self.facts, *directories)
        yield from checks.check_resources(self.facts, self.slots)
        yield from checks.check_gpus(self.facts, self.slots, self._alone)

    def _all_reduce(self) -> Check:
        """Measure the all-reduce with one rank on each host; with two ranks if there is only one host."""
        hosts = list(self.slots)
        several = len(hosts) > 1
        expected = self.expected_bits_per_s or (link_speed(self.facts) if several else None)
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
            *(sys.executable, "-m", "bert_horovod.cluster.doctor.all_reduce", str(expected or 0)),
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
        check = check_all_reduce(self.measured, hosts, expected)
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


UNREACHABLE = ("127.", "fe80:")  # beginnings of addresses that no other host reaches


def check_names(facts: Mapping[str, Facts], interface: str | None, named: bool) -> list[Check]:
    """Whether each host's own name resolves to an address at which the other hosts reach it.

    Gloo uses Horovod's `--network-interfaces` only when the ranks first find each other. The connections that carry the
    gradients listen at the address of the host's own name, so this name also chooses the network.
    """
    several, bad = len(facts) > 1, []
    for host, host_facts in facts.items():
        address, name = host_facts["own_address"], host_facts["name"]
        expected_address = host_facts["interfaces"].get(interface, {}).get("address") or host_facts["address_to_others"]
        if address is None:
            bad.append(
                Check(
                    "name",
                    FAILED,
                    f"{host}: its own name {name} has no address of its own",
                    "an address of this host; Gloo listens there",
                    f"on {host}, add to /etc/hosts: {expected_address or '127.0.1.1'} {name}",
                    (host,),
                )
            )
        elif several and (address.startswith(UNREACHABLE) or address == "::1"):
            line = host_facts["loopback_line"]
            mend = f"take {name} out of that line and add" if line else "to /etc/hosts add"
            bad.append(
                Check(
                    "name",
                    FAILED,
                    f"{host}: its own name {name} is {address}" + (f", by /etc/hosts {line}" if line else ""),
                    "an address that the others reach; Gloo listens there",
                    f"on {host}, {mend} `{expected_address or 'ADDRESS'} {name}`",
                    (host,),
                )
            )
        elif several and interface and expected_address != address:
            own = next((name for name, of in host_facts["interfaces"].items() if of["address"] == address), "unknown")
            bad.append(
                Check(
                    "name",
                    FAILED if named and not host_facts["gpus"]["names"] else WARNING,
                    f"{host}: its own name {name} is {address} on {own}; over that network Gloo moves all gradients",
                    f"an address of {interface}",
                    f"on {host}, give {name} the address of {interface} in /etc/hosts",
                    (host,),
                )
            )
    addresses = (f"{host} {host_facts['own_address']}" for host, host_facts in facts.items())
    return bad or [Check("name", OK, f"own names are addresses of the hosts: {', '.join(addresses)[:100]}")]


def common_interface(facts: Mapping[str, Facts], named: str | None) -> tuple[str | None, list[Check]]:
    """The interface that connects the hosts (None if there is not one), and whether all have it with the same speed."""
    interfaces = {
        host: named or _interface(host_facts, host_facts["address_to_others"]) for host, host_facts in facts.items()
    }
    bad = [
        Check(
            "network",
            FAILED,
            f"{host}: " + (f"no interface {named} with an IPv4 address" if named else "no way to the other hosts"),
            f"one of {', '.join(name for name in host_facts['interfaces'] if name != 'lo')}" if named else "a route",
            "give --network_interfaces another name" if named else f"on {host}: ip address; ip route",
            (host,),
        )
        for host, host_facts in facts.items()
        if interfaces[host] not in host_facts["interfaces"]
    ]
    if bad:
        return None, bad
    names = {name for name in interfaces.values() if name is not None}  # all hosts have one by now
    if len(names) > 1:
        which = ", ".join(f"{name} on {host}" for host, name in interfaces.items())
        mend = "give them one name: horovodrun takes one for all hosts (or none: then it looks for a common one)"
        return None, [Check("network", FAILED, f"interfaces differ: {which}", "the same name on all hosts", mend)]
    (interface,) = names
    speeds = {host: host_facts["interfaces"][interface]["bits_per_s"] for host, host_facts in facts.items()}
    if len(set(speeds.values())) > 1:
        which = ", ".join(f"{_gigabits(speed)} on {host}" for host, speed in speeds.items())
        mend = "see cables and switch: ethtool " + interface
        return interface, [Check("network", WARNING, f"{interface}: {which}", "the same speed everywhere", mend)]
    speed = next(iter(speeds.values()))
    return interface, [Check("network", OK, f"{interface} on {counted(len(facts), 'host')}, {_gigabits(speed)}")]


def _interface(facts: Facts, address: str | None) -> str | None:
    return next((name for name, of in facts["interfaces"].items() if of["address"] == address), None)


def link_speed(facts: Mapping[str, Facts]) -> float | None:
    """The lowest speed, in bit/s, of the interfaces that Gloo's ring uses; None if one is unknown."""
    speeds = [
        host_facts["interfaces"].get(_interface(host_facts, host_facts["own_address"]), {}).get("bits_per_s")
        for host_facts in facts.values()
    ]
    return None if None in speeds else min(speeds)


def check_all_reduce(measured: Mapping, hosts: list[str], expected_bits_per_s: float | None) -> Check:
    """Whether the ring was as fast as its links allow; names the slow links if each link was measured."""
    rate = measured["bits_per_s"]
    text = (
        f"{measured['bytes'] / 2**20:.3g} MiB between {measured['ranks']} ranks in {measured['seconds'] * 1e3:.3g} ms: "
        f"{_gigabits(rate)} a link; latency {measured['latency_s'] * 1e3:.2g} ms"
    )
    if expected_bits_per_s is None:
        return Check("all-reduce", OK, text + ("" if len(hosts) == 1 else "; --expect_gbit N would judge it"))
    expected = f"{SLOW:.0%} of {_gigabits(expected_bits_per_s)}"
    if rate >= SLOW * expected_bits_per_s:
        return Check("all-reduce", OK, f"{text}, {rate / expected_bits_per_s:.0%} of {_gigabits(expected_bits_per_s)}")
    slow = slow_links(measured["links"], hosts, expected_bits_per_s)
    if slow:
        mend = (
            "see cable, port and duplex (ethtool) and other traffic there; or name the fast network "
            "(--network_interfaces); or state the true rate (--expect_gbit N)"
        )
        return Check("all-reduce", FAILED, f"{text}. Slow: {slow}", expected, mend)
    alone = _gigabits(min(measured["links"]))
    mend = f"leave the links alone: each by itself carries {alone}; the sums on the CPU are slower (busy hosts? uptime)"
    return Check("all-reduce", WARNING, text, expected, mend)


def slow_links(links: list[float], hosts: list[str], expected_bits_per_s: float) -> str:
    """The links of a ring that are slow when measured alone, with their rates; a host's name if both its links are."""
    slow = {i for i, rate in enumerate(links) if rate < SLOW * expected_bits_per_s}
    parts = []
    for i, host in enumerate(hosts):
        before, count = (i - 1) % len(hosts), len(hosts)
        if count > 2 and {before, i} <= slow and not {(before - 1) % count, (i + 1) % count} & slow - {before, i}:
            parts.append(f"{host}, {_gigabits(max(links[before], links[i]))} in and out")
            slow -= {before, i}
    parts += [f"{hosts[i]} to {hosts[(i + 1) % len(hosts)]}, {_gigabits(links[i])}" for i in sorted(slow)]
    return "; ".join(parts)


def _gigabits(bits_per_s: float | None) -> str:
    return "speed unknown" if bits_per_s is None else f"{bits_per_s / 1e9:.3g} Gb/s"
