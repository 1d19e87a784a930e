"""Compute a recipe's step time and its parts, memory, efficiency, days and cost, by number of ranks.

bert-horovod plan --recipe F --cluster run/clusters/a100-100gbit.toml        1, 2, 4, ... ranks of that cluster
bert-horovod plan --recipe F --cluster C --compute bench.json --link doctor.json     measurements for data sheets
bert-horovod plan --recipe F --device A100                                   one quick look: one GPU
bert-horovod plan --recipe F --device A100 --link 25Gb/s                     hosts of one GPU
bert-horovod plan --recipe F --cluster C --spot 0.4 --hours_between_losses 12     hosts that are taken away

Nothing runs, and no GPU is needed. Where exchange.method sends different data in different stages of a phase, each
stage is planned, and the tables show the mean over the phase's steps. Below the tables stand
- the largest micro-batch that fits into memory,
- the knee, which is the number of ranks with the largest efficiency times speed-up,
- the last number of ranks that is worth it: up to there each added rank brings at least half of a lone rank's rows/s,
- settings that reach --efficiency, first those that harm learning least,
- the link rate below which int8 gradients pay over float16 ones: the exposed communication of float16 is more than 5 %
  of its step, and the step of int8 is at least 2 % shorter.
A plan does not know how much a method harms learning: see docs/results.md. docs/plan.md says more.
"""

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from bert_horovod.commands.shared.flags import RECIPE, add_data_dirs, add_overrides, require_least
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.costs.choices import (
    alternatives,
    doubling,
    int8_pays_below,
    knee,
    largest_micro_batches,
    priced_choices,
    worth_until,
)
from bert_horovod.costs.clusters import (
    Cluster,
    DeviceSheet,
    Losses,
    SpotPlan,
    device_of,
    parse_rate,
    read_cluster,
    spot_plan,
)
from bert_horovod.costs.measurements import measured_device, measured_network
from bert_horovod.costs.planner import (
    HOP_LATENCY_S,
    LINK_SHARE,
    SPREAD,
    Device,
    Network,
    PhasePlan,
    plan_phase,
)
from bert_horovod.costs.prices import Bill, bill
from bert_horovod.errors import UserError
from bert_horovod.exchange.methods import METHODS
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.reporting.plan_table import PhaseAdvice, plan_svg, plan_text, spot_text
from bert_horovod.storage.writing import write_output

_MOST_RANKS = 32  # that are planned without a cluster file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help=RECIPE)
    add_overrides(parser)
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="hosts, devices, links, prices; see run/clusters/")
    parser.add_argument("--compute", type=Path, metavar="FILE", help="what `bench step --json` printed")
    parser.add_argument(
        "--link",
        metavar="RATE|FILE",
        help="rate between hosts, as in 10Gb/s, or what `doctor --json` or `bench step --json` printed; "
        "one device needs none",
    )
    parser.add_argument(
        "--world_size", nargs="+", type=int, metavar="N", help="numbers of ranks (default: 1 2 4 ... of the cluster)"
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="a GPU with a known data sheet, as in --device 'V100 32GB'; others are described by a cluster file",
    )
    parser.add_argument(
        "--efficiency", type=float, default=0.8, metavar="X", help="efficiency to aim for (default: %(default)s)"
    )
    spot = parser.add_argument_group("machines that are taken away, as spot and preemptible ones")
    spot.add_argument("--spot", type=float, metavar="SHARE", help="plan for them; their price as a share of the usual")
    of_spot = [
        spot.add_argument(f"--{name}", type=float, default=default, metavar="X", help=f"{words} (default: %(default)s)")
        for name, default, words in (
            ("hours_between_losses", 24.0, "mean hours that a host stays"),
            ("save_s", 10.0, "seconds that training waits for a save: saving_s of metrics.jsonl, times steps"),
            ("restart_s", 300.0, "seconds from a loss to the next step, with the wait for another host"),
        )
    ]
    for action in of_spot:
        read_with(action, "with --spot", lambda it: it.spot is not None)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the parts of a step's time")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    data = add_data_dirs(parser, required=False, more=", whose share of tokens and epochs are printed")
    read_with(data, "without --json", lambda it: not it.json)


def run(arguments: argparse.Namespace) -> None:
    """Print the plan of each phase."""
    _check_share("--efficiency", arguments.efficiency)
    if arguments.spot is not None:
        _check_share("--spot", arguments.spot)
    for name, least, most in (("hours_between_losses", 0.01, 1e5), ("save_s", 1e-3, 1e5), ("restart_s", 1e-3, 1e6)):
        if not least <= getattr(arguments, name) <= most:
            raise UserError(f"--{name} {getattr(arguments, name):g}: expected {least:g} to {most:,.0f}")
    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        raise UserError(f"--plot {arguments.plot}: expected a name that ends with .svg")
    if arguments.plot:
        from bert_horovod.commands.shared.output_flags import require_output_file

        require_output_file(arguments, "plot")
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    for note in recipe.notes:
        print(f"bert-horovod: note: {note}", file=sys.stderr)
    lines = _stores(recipe, arguments.data_dir) if arguments.data_dir else []
    cluster = _cluster(arguments)
    device, network = _device(arguments, cluster, recipe), _network(arguments, cluster)
    rows = min(phase.global_batch for phase in recipe.phase)
    most = cluster.ranks if cluster else _MOST_RANKS if arguments.link else 1
    ranks = sorted(set(arguments.world_size or doubling(min(rows, most))))
    require_least("--world_size", ranks[0])
    if cluster and ranks[-1] > cluster.ranks:
        raise UserError(f"--world_size {ranks[-1]}: {arguments.cluster} has {cluster.ranks} devices")
    if not cluster and not arguments.link and ranks[-1] > 1:
        raise UserError(f"--world_size {ranks[-1]}: which link? Give --cluster, or --link as in --link 10Gb/s")
    plans = [plan_phase(recipe, i, n, device, network) for i in range(len(recipe.phase)) for n in ranks]
    prices = cluster.costs if cluster else None
    bills = [bill(prices, plan.days, plan.world_size) for plan in plans]
    advice = [
        _advice(recipe, [plan for plan in plans if plan.phase == i], device, network, arguments.efficiency)
        for i in range(len(recipe.phase))
    ]
    taken = [] if arguments.spot is None else [_spot(arguments, recipe, plan, cluster) for plan in plans]
    if arguments.plot is not None:
        write_output(arguments.plot, plan_svg(f"{arguments.recipe.name} on {device.name}", plans))
    if arguments.json:
        spot = {"spot": list(map(dataclasses.asdict, taken))}
        print(json.dumps(_finite(_table(device, network, plans, bills, advice) | spot)))
    else:
        print("\n".join([plan_text(recipe, device, network, plans, bills, prices, advice), *lines]))
        if taken:
            print(spot_text(taken, arguments.spot, arguments.hours_between_losses, prices))


def _stores(recipe: Recipe, words: list[Path]) -> list[str]:
    """What the run reads of each store."""
    from bert_horovod.batches.text.mixture import check_mixtures
    from bert_horovod.batches.text.mixture_table import mixture_lines
    from bert_horovod.corpus.stores import open_stores, train_tokens

    stores = open_stores(words)
    check_mixtures(recipe, stores)
    return list(mixture_lines(recipe, {name or "store": tokens for name, tokens in train_tokens(stores).items()}))


def _cluster(arguments: argparse.Namespace) -> Cluster | None:
    if arguments.cluster is None:
        return None
    rate = arguments.link is not None and _is_rate(arguments.link)
    if given := "--device" if arguments.device is not None else "--link RATE" if rate else "":
        raise UserError(f"{given} with --cluster: write it into {arguments.cluster}, or leave --cluster out")
    return read_cluster(arguments.cluster)


def _device(arguments: argparse.Namespace, cluster: Cluster | None, recipe: Recipe) -> Device:
    precision, compute = recipe.numerics.precision, arguments.compute
    if cluster:
        device = cluster.rank_device(precision)
    else:
        if arguments.device is None and compute is None:
            raise UserError("which device? Give --cluster, --device or --compute")
        # Without a device the measurement in the file of --compute replaces the peak.
        sheet = DeviceSheet(arguments.device or "", tflops=0.0 if arguments.device else 1.0, spread=SPREAD)
        device = device_of(sheet, "--", precision, "device")
    return device if compute is None else measured_device(compute, recipe, device)


def _network(arguments: argparse.Namespace, cluster: Cluster | None) -> Network:
    link = arguments.link
    if cluster:
        network = cluster.network
    else:
        rate = parse_rate(link, "--link") if link is not None and _is_rate(link) else math.inf
        network = Network(rate, LINK_SHARE, HOP_LATENCY_S)
    return network if link is None or _is_rate(link) else measured_network(Path(link), network)


def _is_rate(link: str) -> bool:
    return not Path(link).is_file() and not link.endswith(".json")


def _check_share(flag: str, share: float) -> None:
    if not 0 < share <= 1:
        raise UserError(f"{flag} {share:g}: expected a share above 0, at most 1")


def _advice(recipe: Recipe, plans: list[PhasePlan], device: Device, network: Network, efficiency: float) -> PhaseAdvice:
    phase, most = plans[-1].phase, plans[-1].world_size
    several = most > 1
    return PhaseAdvice(
        phase=phase,
        world_size=most,
        knee=knee(plans),
        worth_until=worth_until(plans),
        largest_micro_batch=largest_micro_batches(recipe, phase, most, device),
        wished_efficiency=efficiency,
        choices=priced_choices(recipe, phase, most, device, network, efficiency, METHODS) if several else [],
        step_s={
            setting: plan_phase(alternative, phase, most, device, network).step_s
            for setting, alternative in (alternatives(recipe, METHODS).items() if several else ())
        },
        int8_pays_below_bytes_per_s=int8_pays_below(recipe, phase, most, device, network, METHODS),
        least=plans[0].world_size,
    )


def _spot(arguments: argparse.Namespace, recipe: Recipe, plan: PhasePlan, cluster: Cluster | None) -> SpotPlan:
    hosts = math.ceil(plan.world_size / (cluster.hosts.devices if cluster else 1))
    losses = Losses(3600 * arguments.hours_between_losses / hosts, arguments.save_s, arguments.restart_s)
    prices = cluster.costs if cluster else None
    return spot_plan(recipe, plan, hosts, losses, prices, arguments.spot)


def _table(
    device: Device, network: Network, plans: list[PhasePlan], bills: list[Bill], advice: list[PhaseAdvice]
) -> dict[str, Any]:
    return {
        "device": dataclasses.asdict(device),
        "network": dataclasses.asdict(network),
        "plans": [
            dataclasses.asdict(plan)
            | {"step_s": plan.step_s, "tokens_per_s_of_a_device": plan.tokens_per_s / plan.world_size}
            | bill._asdict()
            for plan, bill in zip(plans, bills, strict=True)
        ],
        "advice": [dataclasses.asdict(each) for each in advice],
    }


def _finite(value: Any) -> Any:
    """The value, with None for floats that JSON cannot hold, such as the infinite rate of a link that no rank uses."""
    if isinstance(value, dict):
        return {key: _finite(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
