"""Run a command as ranks on one or many hosts, with orderly stops and clear ends: launch -np N [hosts] -- COMMAND ...

This host:    bert-horovod launch -np 2 -- pretrain --recipe R --data_dir D --output_dir O
Many hosts:   bert-horovod launch -np 32 -hostfile hosts -- pretrain --recipe R --data_dir D --output_dir O
In a job of SLURM, PBS, LSF, Kubernetes' MPI operator or SkyPilot the hosts are the job's:
              bert-horovod launch -- pretrain ...

SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 make the ranks save at the same step and end, with exit code 0; the same
command resumes. A second signal kills the ranks.
With --restarts N a run that failed is started again, at most N times, and resumes from its last checkpoint. Hosts that
fail the checks of `doctor`, or on which a rank computed wrongly, are left out; then there are fewer ranks, and the
global batch stays the same.
Exit code: 0 at the run's end and after such a stop, 2 for a mistake in flags, recipe or hosts, 4 if a device computed
wrongly, 128 + n if killed by signal n, 1 for every other failure.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import require_least
from bert_horovod.commands.shared.host_flags import add_hosts
from bert_horovod.commands.shared.parser import read_with

if TYPE_CHECKING:
    from bert_horovod.cluster.launching.hostfiles import Hosts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("-np", type=int, metavar="N", dest="ranks", help="ranks (default: all slots of the hosts)")
    add_hosts(parser)
    parser.add_argument(
        "--network_interfaces",
        metavar="NAME,...",
        help="interfaces of the fast network, as in eth1 (default: those that all share)",
    )
    parser.add_argument("--mpi", action="store_true", help="start and join by MPI instead of ssh and Gloo")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start again after N failures at most (default: %(default)s)",
    )
    parser.add_argument(
        "--discover",
        metavar="COMMAND",
        help="a shell command that prints the hosts as a hostfile, at the start and at each restart",
    )
    wait = parser.add_argument(
        "--wait_for_hosts",
        metavar="TIME",
        help="at a restart, wait so long for as many slots as before, as in 90s, 10m or 1h (default: no longer than it "
        "takes to examine the hosts)",
    )
    read_with(wait, "with --restarts", lambda arguments: arguments.restarts)
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        dest="variables",
        help="pass this environment variable to the ranks too; other users can see its value in the list of processes",
    )
    command = parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="of bert-horovod")
    command.required = True  # set here, because releases of Python 3.12 differ in the default


def run(arguments: argparse.Namespace) -> int:
    """Check the command, find the hosts, run the ranks."""
    from bert_horovod.cluster.launching.deadline import duration_s
    from bert_horovod.cluster.launching.launcher import LaunchPlan
    from bert_horovod.cluster.launching.restarts import Again, launch_with_restarts
    from bert_horovod.commands.shared.parser import parse, refuse_unread
    from bert_horovod.errors import UserError
    from bert_horovod.runs.status_files import LAUNCHED_BY
    from bert_horovod.runtime.lasting_log import outlive_log

    outlive_log()
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command or command[0] == "launch":
        raise UserError("expected a command to run, as in: bert-horovod launch -np 2 -- pretrain --recipe ...")
    parsed = parse(["bert-horovod", *command])  # finds mistakes here, once, before ranks start
    refuse_unread(parsed)
    require_least("-np", arguments.ranks)
    require_least("--restarts", arguments.restarts, 0)
    wait_s = duration_s("--wait_for_hosts", arguments.wait_for_hosts) if arguments.wait_for_hosts else 0.0
    hosts, read_hosts = _hosts(arguments)
    os.environ[LAUNCHED_BY] = json.dumps(arguments.words)
    return launch_with_restarts(
        LaunchPlan(
            ranks=arguments.ranks or sum(hosts.values()),
            hosts=hosts,
            command=command,
            stop_file=parsed.output_dir.absolute() / "stop" if command[0] == "pretrain" else None,
            network_interfaces=arguments.network_interfaces,
            ssh_port=arguments.ssh_port,
            mpi=arguments.mpi,
            variables=tuple(arguments.variables),
            stop_when=getattr(parsed, "stop_when", None),
            has_mirror=command[0] == "pretrain" and _has_mirror(parsed),
        ),
        Again(arguments.restarts, read_hosts, may_grow=arguments.ranks is None, wait_s=wait_s),
    )


def _has_mirror(parsed: argparse.Namespace) -> bool:
    """Whether the run of this command has execution.mirror; the ranks check the whole recipe."""
    from bert_horovod.errors import UserError
    from bert_horovod.recipe.fields import read_toml
    from bert_horovod.recipe_files.loading import recipe_file

    try:
        section = read_toml(recipe_file(parsed.recipe), "the recipe").get("execution")
    except UserError:  # it is perhaps on the ranks' hosts alone
        section = None
    place = section.get("mirror") if isinstance(section, dict) else None
    for override in parsed.overrides:
        key, _, text = override.partition("=")
        place = text.strip("\"' ") if key.strip() == "execution.mirror" else place
    return bool(place)


def _hosts(arguments: argparse.Namespace) -> "tuple[Hosts, Callable[[], Hosts] | None]":
    """The hosts, and what reads them anew; None: they cannot change."""
    from bert_horovod.cluster.doctor.ask import is_here
    from bert_horovod.cluster.launching.hostfiles import (
        LEFT_OVER,
        OPERATORS_DISCOVERY,
        discover,
        from_scheduler,
        in_kubernetes,
        parse_hosts,
        read_hostfile,
    )
    from bert_horovod.errors import UserError
    from bert_horovod.wording import counted

    if arguments.discover:
        if arguments.hostfile or arguments.hosts:
            raise UserError("--discover and -hostfile or -H name the hosts twice; give one of them")
        read = partial(discover, arguments.discover)
        return read(), read
    if arguments.hostfile:
        return read_hostfile(arguments.hostfile), partial(read_hostfile, arguments.hostfile)
    if arguments.hosts:
        return parse_hosts(arguments.hosts), None
    if scheduled := from_scheduler():
        hosts, source = scheduled
        print(f"{counted(len(hosts), 'host')}, {counted(sum(hosts.values()), 'slot')}, from {source}", file=sys.stderr)
        if (arguments.ranks or 0) > sum(hosts.values()):
            raise UserError(
                f"-np {arguments.ranks} is more than the slots of the hosts, {sum(hosts.values())} on {len(hosts)}, "
                f"from {source}; give fewer ranks; {LEFT_OVER}"
            )
        if in_kubernetes():  # there the launcher's pod has no rank of its own
            found = OPERATORS_DISCOVERY.is_file()
            return hosts, partial(discover, str(OPERATORS_DISCOVERY), max(hosts.values())) if found else None
        own_name = socket.gethostname().partition(".")[0]
        if own_name not in {host.partition(".")[0] for host in hosts} and not any(map(is_here, hosts)):
            print(
                f"bert-horovod: warning: this host, {socket.gethostname()}, is not among them; {LEFT_OVER}",
                file=sys.stderr,
            )
        return hosts, None
    if arguments.ranks:
        return parse_hosts(f"localhost:{arguments.ranks}"), None
    raise UserError(
        "expected -np N for ranks on this host, or hosts: -hostfile F, -H host:n,..., --discover COMMAND or a "
        "scheduler's job"
    )
