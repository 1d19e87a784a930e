"""Flags that several commands and benchmarks share."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.errors import UserError

if TYPE_CHECKING:
    from bert_horovod.cluster.launching.hostfiles import Hosts

RECIPE = "a recipe in TOML, or the name of one that `bert-horovod recipes` lists"  # help text of --recipe


def add_path(parser: argparse.ArgumentParser, name: str, flag: str, metavar: str, what: str) -> None:
    """Declare a path that is named alone, or after a flag; exactly one is required.

    Args:
        parser: of the command.
        name: of the path alone, in the usage.
        flag: as in --data_dir; it names the value too.
        metavar: of the flag's value.
        what: help text.
    """
    either = parser.add_mutually_exclusive_group(required=True)
    dest = flag.removeprefix("--")
    either.add_argument(dest, nargs="?", type=Path, metavar=name, default=argparse.SUPPRESS, help=what)
    either.add_argument(flag, type=Path, metavar=metavar, help=f"the same as {name}")


def add_overrides(parser: argparse._ActionsContainer, example: str = "execution.micro_batch=8") -> None:
    """Declare --set KEY=VALUE; its values form the list `overrides`, which recipe_files.loading.load_recipe reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"override a setting of the recipe, as in --set {example}; repeatable",
    )


def add_tuned(parser: argparse.ArgumentParser) -> None:
    """Declare --tuned; recipe_files.tuned.tuned_overrides makes overrides of its file, and --set wins over them."""
    parser.add_argument(
        "--tuned",
        type=Path,
        metavar="FILE",
        help="settings of [execution] that bert-horovod tune found for this machine; --set wins over them",
    )


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


def given_hosts(arguments: argparse.Namespace) -> "Hosts | None":
    """The hosts that the flags of `add_hosts` name; None: neither flag is given. Raises UserError."""
    from bert_horovod.cluster.launching.hostfiles import parse_hosts, read_hostfile

    if arguments.hostfile:
        return read_hostfile(arguments.hostfile)
    return parse_hosts(arguments.hosts) if arguments.hosts else None


def require_number(flag: str, number: float | None) -> None:
    """Raise UserError if a flag's value is nan, with which every comparison fails; None: the flag is not given."""
    if number is not None and math.isnan(number):
        raise UserError(f"{flag} {number}: expected a number")


def require_least(flag: str, number: int | None, least: int = 1) -> None:
    """Raise UserError if a flag's number is below `least`; None: the flag is not given."""
    if number is not None and number < least:
        raise UserError(f"{flag} {number}: expected at least {least}")
