"""Flags that several commands and benchmarks share."""

import argparse
from pathlib import Path


def add_overrides(parser: argparse.ArgumentParser, example: str = "execution.micro_batch=8") -> None:
    """Declare --set KEY=VALUE; config.load_recipe reads what it gathers in `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"override a setting of the recipe, as in --set {example}; repeatable",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Declare -hostfile, -H (`hosts`) and --ssh_port, as horovodrun has them."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="lines `host slots=N` (default: the scheduler's hosts)",
    )
    where.add_argument("-H", "--hosts", metavar="HOST:N,...", help="the same in one word, as in -H node1:8,node2:8")
    parser.add_argument("--ssh_port", type=int, metavar="N", help="of the hosts' sshd (default: ssh's own)")
