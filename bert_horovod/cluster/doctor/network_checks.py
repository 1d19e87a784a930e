"""Check names, interfaces and links between hosts: what is wrong, and how to fix it. Arithmetic alone, as in checks."""

from collections.abc import Mapping

from bert_horovod.cluster.doctor.checks import FAILED, OK, WARNING, Check, count_hosts, short
from bert_horovod.cluster.doctor.facts import Facts

UNREACHABLE = ("127.", "fe80:")  # beginnings of addresses that no other host reaches
SLOW = 0.7  # fraction of the expected rate: headers, latency and other traffic take the rest


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
    addresses = ", ".join(f"{host} {host_facts['own_address']}" for host, host_facts in facts.items())
    return bad or [Check("name", OK, f"own names are addresses of the hosts: {short(addresses)}")]


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
    return interface, [Check("network", OK, f"{interface} on {count_hosts(len(facts))}, {_gigabits(speed)}")]


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
    """Whether the ring was as fast as its links allow; names the slow links if each link was measured.

    Args:
        measured: the JSON that bert_horovod.cluster.doctor.all_reduce prints.
        hosts: by rank.
        expected_bits_per_s: of a link; None: the rate is not judged.
    """
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
    """The links of a ring that are slow when measured alone, with their rates; a host's name if both its links are.

    Args:
        links: bit/s from each host to the next, the last to the first.
        hosts: by rank.
        expected_bits_per_s: of a link.
    """
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
