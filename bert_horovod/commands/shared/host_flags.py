"""The flags that name hosts."""

import argparse
from pathlib import Path

from bert_horovod.cluster.launching.hostfiles import Hosts, parse_hosts, read_hostfile


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Declare -hostfile, -H (`hosts`) and --ssh_port, as horovodrun has them."""
    hosts_group = parser.add_mutually_exclusive_group()
    hosts_group.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="file with a line `host slots=N` or `host:N` for each host (default: the scheduler's hosts)",
    )
    hosts_group.add_argument(
        "-H", "--hosts", metavar="HOST:N,...", help="hosts in one word instead of a file, as in -H node1:8,node2:8"
    )
    parser.add_argument("--ssh_port", type=int, metavar="N", help="port of the hosts' sshd (default: ssh's own)")


def given_hosts(arguments: argparse.Namespace) -> Hosts | None:
    """The hosts that the flags of `add_hosts` name; None: neither flag is given. Raises UserError."""
    if arguments.hostfile:
        return read_hostfile(arguments.hostfile)
    return parse_hosts(arguments.hosts) if arguments.hosts else None
