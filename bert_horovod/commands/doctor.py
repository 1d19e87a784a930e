"""Check the hosts of a run before the run: ssh, versions, names, network, clocks, disks, GPUs, all-reduce.

bert-horovod doctor                          this host
bert-horovod doctor -hostfile hosts          every host of a file
bert-horovod doctor -H node1:8,node2:8       the same in one word

Every check prints one line: ok, warning or FAILED, the value found and the value expected; under it, how to mend it.
If nothing has failed, the last line is the command that starts a run. Without hosts, outside of a scheduler's job, only
this host is checked. Exit code: 0 if nothing failed, 1 otherwise.
"""

import argparse
import json
from dataclasses import asdict

from bert_horovod.commands.shared.host_flags import add_hosts, given_hosts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_hosts(parser)
    parser.add_argument(
        "--network_interfaces",
        metavar="NAME",
        help="interface of the fast network, as in eth1 (default: the one in use)",
    )
    parser.add_argument(
        "--expect_gbit", type=float, metavar="X", help="Gb/s of a host's link (default: what its interface says)"
    )
    parser.add_argument("--output_dir", metavar="DIR", help="check whether a run's checkpoints have room there")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Print each check when it is made; 1 if one failed."""
    from bert_horovod.cluster.doctor.checks import FAILED
    from bert_horovod.cluster.doctor.examination import Doctor
    from bert_horovod.cluster.launching.hostfiles import from_scheduler
    from bert_horovod.errors import UserError

    if arguments.expect_gbit is not None and not arguments.expect_gbit > 0:
        raise UserError(f"--expect_gbit {arguments.expect_gbit:g}: expected more than 0")
    if arguments.ssh_port is not None and not 0 < arguments.ssh_port < 65536:
        raise UserError(f"--ssh_port {arguments.ssh_port}: expected 1 to 65535")
    which: list[str] = []
    if arguments.hostfile:
        which = ["-hostfile", str(arguments.hostfile.absolute())]
    elif arguments.hosts:
        which = ["-H", arguments.hosts]
    hosts, source = given_hosts(arguments) or {}, ""
    if not hosts:
        hosts, source = from_scheduler() or ({}, "")
    doctor = Doctor(
        hosts=hosts,
        source=source,
        network_interface=arguments.network_interfaces,
        ssh_port=arguments.ssh_port,
        expected_bits_per_s=arguments.expect_gbit and arguments.expect_gbit * 1e9,
        output_dir=arguments.output_dir,
    )
    checks_made = []
    for check in doctor.examine():
        checks_made.append(check)
        if not arguments.json:
            expected = f"; expected {check.expected}" if check.expected else ""
            mend = f"\n{'':22}mend: {check.mend}" if check.mend else ""
            print(f"{check.level:8} {check.name:12} {check.found}{expected}{mend}", flush=True)
    failed = sum(check.level == FAILED for check in checks_made)
    start = None if failed else doctor.start_line(which)
    if arguments.json:
        checks = [asdict(check) for check in checks_made]
        report = {"ok": not failed, "checks": checks, "start": start, "all_reduce": doctor.measured}
        print(json.dumps(report | {"hosts": doctor.facts}))
    else:
        print(f"{failed} of {len(checks_made)} checks failed" if failed else f"start a run:\n{start}")
    return 1 if failed else 0
