"""Flags that several commands and benchmarks share."""

import argparse
from pathlib import Path

from bert_horovod.cluster.launching.hostfiles import Hosts, parse_hosts, read_hostfile
from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import SHORTEST_ROW, SIZES, size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe

RECIPE = "a recipe in TOML, or the name of one that `bert-horovod recipes` lists"  # help text of --recipe


def add_overrides(parser: argparse.ArgumentParser, example: str = "execution.micro_batch=8") -> None:
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
        help="file with a line `host slots=N` for each host (default: the scheduler's hosts)",
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


def require_least(flag: str, number: int | None, least: int = 1) -> None:
    """Raise UserError if a flag's number is below `least`; None: the flag is not given."""
    if number is not None and number < least:
        raise UserError(f"{flag} {number}: expected at least {least}")


def add_step(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a benchmark of the step."""
    configuration = parser.add_mutually_exclusive_group()
    configuration.add_argument("--recipe", type=Path, metavar="FILE", help=RECIPE + "; its first phase is measured")
    configuration.add_argument(
        "--model", choices=tuple(SIZES), help="without a recipe: the model's size (default: base)"
    )
    add_overrides(parser, "numerics.precision=bfloat16")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a micro-batch (default: the recipe's)")
    parser.add_argument("--length", type=int, metavar="N", help="positions of a row (default: the recipe's)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps (default: %(default)s)")


def step_recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe for the flags of `add_step`; raises UserError."""
    for flag, least in (("steps", 1), ("rows", 1), ("length", SHORTEST_ROW)):
        require_least(f"--{flag}", getattr(arguments, flag), least)
    if arguments.recipe is None:
        return size_recipe(arguments.model or "base", arguments.overrides, arguments.rows, arguments.length)
    overrides = list(arguments.overrides)
    if arguments.rows is not None:
        overrides.append(f"execution.micro_batch={arguments.rows}")
    if arguments.length is not None:
        overrides.append(f"phase.0.sequence_length={arguments.length}")
    return load_recipe(arguments.recipe, overrides).of_phase(0)
