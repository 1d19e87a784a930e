"""Measure weak scaling: the real step on 1M1G (one machine, one GPU), 1M2G, ..., xMyG in turn; each rank does the same.

bert-horovod bench scaling --recipe F -hostfile hosts --output scaling.json
bert-horovod bench scaling --recipe F -H node1:8,node2:8 --layout 1M1G 2M1G 2M8G --cluster C

Rows are synthetic and full, so that reading data takes no time; the step, its buckets and their all-reduces are those
of training. Speed-up and efficiency are relative to 1M1G. "exposed s" is the time that communication adds to a step.
With --cluster the table has the price of a billion tokens. `plan --compute FILE --link FILE` and `report --scaling
FILE` read the file of --output. A layout that fails is named and left out; the exit code is 1 then.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bert_horovod.commands.shared.flags import require_least
from bert_horovod.commands.shared.host_flags import add_hosts, given_hosts
from bert_horovod.commands.shared.step_flags import add_step, step_recipe
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe_files.loading import recipe_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    add_step(parser)
    add_hosts(parser)
    parser.add_argument("--network_interfaces", metavar="NAME,...", help="interfaces of the fast network, as in eth1")
    parser.add_argument("--mpi", action="store_true", help="start and join by MPI instead of ssh and Gloo")
    parser.add_argument(
        "--layout", nargs="+", metavar="xMyG", help="machines and devices of each (default: doubled up to all)"
    )
    parser.add_argument(
        "--micro_batches",
        type=int,
        metavar="K",
        help="micro-batches of a rank's step, on all layouts (default: the recipe's on the largest one)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="measurements of each layout; the median counts (default: %(default)s)",
    )
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="cluster file with the price of a device's hour")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write to this file what --json prints")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Measure layout by layout, print the table."""
    from bert_horovod.cluster.launching.hostfiles import from_scheduler
    from bert_horovod.commands.shared.output_flags import require_output_file
    from bert_horovod.costs.clusters import read_cluster
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.bench_child import in_turn
    from bert_horovod.measuring.weak_scaling import parse_layout, results, run_layout, usual_layouts
    from bert_horovod.reporting.tables import cells, heading, lines
    from bert_horovod.storage.writing import write_output

    if arguments.output:
        require_output_file(arguments)
    recipe = step_recipe(arguments)
    require_least("--rounds", arguments.rounds)
    require_least("--micro_batches", arguments.micro_batches)
    cluster = read_cluster(arguments.cluster) if arguments.cluster else None
    hosts = given_hosts(arguments) or (from_scheduler() or ({}, ""))[0]
    if not hosts:
        raise UserError("which hosts? Give -hostfile F or -H host:n,...; for this host alone -H localhost:2")
    layouts = list(dict.fromkeys(map(parse_layout, arguments.layout))) if arguments.layout else usual_layouts(hosts)
    for layout in layouts:
        layout.hosts(hosts)  # refuses a layout for which there are too few hosts or slots
    most = max(layout.ranks for layout in layouts)
    count = arguments.micro_batches or derive(recipe, recipe.phase[0], most).micro_batches
    words = _step_words(arguments)
    options = ["--network_interfaces", arguments.network_interfaces] if arguments.network_interfaces else []
    options += ["--ssh_port", str(arguments.ssh_port)] if arguments.ssh_port else []
    options += ["--mpi"] if arguments.mpi else []

    runs, done, started = arguments.rounds * len(layouts), 0, time.monotonic()

    def run_one(layout: Any, _: int) -> dict[str, Any]:
        rows = count * recipe.execution.micro_batch * layout.ranks
        answer = run_layout(layout, hosts, options, [*words, "--set", f"phase.0.global_batch={rows}"])
        tell(layout, f"{answer['rows_per_s']:.1f} rows/s")
        return answer

    def tell(layout: Any, outcome: object) -> None:
        nonlocal done
        done += 1
        left_s = (runs - done) * (time.monotonic() - started) / done
        time_left = f"; about {left_s / 60:.0f} min left" if left_s > 60 else ""
        print(f"{done}/{runs} {layout}: {outcome}{time_left}", file=sys.stderr, flush=True)

    print(f"{runs} run(s): {', '.join(map(str, layouts))}", file=sys.stderr, flush=True)
    measured = in_turn(layouts, arguments.rounds, run_one, lambda layout, error: tell(layout, f"left out: {error}"))
    if not measured:
        raise RunError("no layout could be measured; `bert-horovod doctor` finds what is wrong with hosts")
    price = cluster.costs.device_hour if cluster and cluster.costs.device_hour >= 0 else None
    scaling = results(measured, recipe, count, price, cluster.costs.currency if cluster else "")
    if arguments.output:
        write_output(arguments.output, json.dumps(scaling, indent=1) + "\n")
    print(json.dumps(scaling) if arguments.json else f"{heading(scaling)}\n{lines(cells(scaling))}")
    return RunError.exit_code if len(measured) < len(layouts) else 0


def _step_words(arguments: argparse.Namespace) -> list[str]:
    """The flags of `add_step` as they were given, for `bench step`."""
    words = []
    for name in ("recipe", "model", "steps"):
        setting = getattr(arguments, name)
        if setting is not None:
            words += [f"--{name}", str(recipe_file(setting).absolute() if name == "recipe" else setting)]
    for override in arguments.overrides:
        words += ["--set", override]
    return words
