"""Compute what a recipe will take: time of a step and its parts, memory, efficiency and days, by number of ranks.

bert-horovod plan --recipe F --device A100 --link 25Gb/s                     1, 2, 4, ... 32 ranks
bert-horovod plan --recipe F --world_size 8 32 --tflops 125 --memory 16GiB --link 1Gb/s

Nothing runs, and no GPU is needed. The link is the slowest hop of the ring, as a rule the network between two hosts.
What exchange.method sends is planned in each stage of a phase; the table has the mean over the phase's steps.

Below a phase's table are the steps of narrower wires and of 1-bit exchange (or of the recipe's own exchange.method),
and the link's rate below which int8 gradients pay over float16 ones: where float16's exposed communication is more than
5 % of its step, and int8's step at least 2 % shorter. What a method costs in learning no plan knows: docs/results.md.

`bert-horovod bench compute` and `bench comm` measure what shares of peak and link a cluster reaches.
"""

import argparse
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.costs.gpus import TERA, gpu_memory, gpu_peak, known_gpus
from bert_horovod.costs.planner import (
    HOP_LATENCY_S,
    LINK_SHARE,
    PRODUCT_SHARE,
    WORTH,
    Device,
    Network,
    PhasePlan,
    alternatives,
    int8_pays_below,
    plan_phase,
)
from bert_horovod.errors import UserError
from bert_horovod.measuring.tables import lines
from bert_horovod.recipe.loading import load_recipe
from bert_horovod.recipe.sections import Recipe

_RANKS = (1, 2, 4, 8, 16, 32)
_PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)(b|bit|B)/s")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])(i?)B")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="recipe in TOML")
    add_overrides(parser)
    parser.add_argument(
        "--world_size", nargs="+", type=int, metavar="N", help="numbers of ranks (default: 1 2 4 8 16 32)"
    )
    device = parser.add_mutually_exclusive_group(required=True)
    device.add_argument("--device", metavar="NAME", help="a GPU with a known data sheet, as in --device 'V100 32GB'")
    device.add_argument(
        "--tflops", type=float, metavar="X", help="or its peak of matrix products in the recipe's precision"
    )
    parser.add_argument(
        "--product_share",
        type=float,
        default=PRODUCT_SHARE,
        metavar="X",
        help="of the peak, what forward and backward reach (default: %(default)s, as published for V100, A100)",
    )
    parser.add_argument("--memory", metavar="SIZE", help="of a device, as in 16GiB (default: the data sheet's)")
    parser.add_argument("--memory_rate", metavar="RATE", help="of a device, as in 900GB/s (default: the data sheet's)")
    parser.add_argument("--link", required=True, metavar="RATE", help="between hosts, as in 10Gb/s")
    parser.add_argument(
        "--link_share",
        type=float,
        default=LINK_SHARE,
        metavar="X",
        help="of the link's rate, what all-reduces reach (default: %(default)s, as over TCP up to 10 Gb/s)",
    )
    parser.add_argument(
        "--latency_ms",
        type=float,
        default=1e3 * HOP_LATENCY_S,
        metavar="X",
        help="of a message from rank to rank (default: %(default)s, as published for 10 Gb/s Ethernet)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(arguments: argparse.Namespace) -> None:
    """Print the plan of each phase."""
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    device, network = _device(arguments, recipe.numerics.precision), _network(arguments)
    ranks = arguments.world_size or [n for n in _RANKS if n <= min(phase.global_batch for phase in recipe.phase)]
    if wrong := [n for n in ranks if n < 1]:
        raise UserError(f"--world_size {wrong[0]}: expected at least 1")
    plans = [plan_phase(recipe, i, n, device, network) for i in range(len(recipe.phase)) for n in ranks]
    slow_links = [
        _slow_link(recipe, i, max(ranks), device, network) for i in range(len(recipe.phase)) if max(ranks) > 1
    ]
    if arguments.json:
        found = {
            "device": asdict(device),
            "network": asdict(network),
            "slow_links": [asdict(each) for each in slow_links],
        }
        print(json.dumps(found | {"plans": [asdict(plan) | {"step_s": plan.step_s} for plan in plans]}))
    else:
        print(_text(recipe, device, network, plans, slow_links))


@dataclass(frozen=True)
class SlowLink:
    """What a phase gains by sending less."""

    phase: int
    world_size: int
    step_s: dict[str, float]  # by setting
    int8_pays_below_bytes_per_s: float | None  # None: at no rate

    def describe(self) -> str:
        """A line for people."""
        steps = ", ".join(f"{step_s:.4g} s with {setting}" for setting, step_s in self.step_s.items())
        rate = self.int8_pays_below_bytes_per_s
        if rate is None:
            return f"a step on {self.world_size} ranks: {steps}; int8 pays over float16 at no rate of the link"
        return (
            f'a step on {self.world_size} ranks: {steps}; below {8e-9 * rate:.3g} Gb/s numerics.wire = "int8" pays: '
            f"more than {WORTH:.0%} of float16's step is exposed communication"
        )


def _slow_link(recipe: Recipe, phase: int, world_size: int, device: Device, network: Network) -> SlowLink:
    steps = {
        setting: plan_phase(each, phase, world_size, device, network).step_s
        for setting, each in alternatives(recipe).items()
    }
    return SlowLink(phase, world_size, steps, int8_pays_below(recipe, phase, world_size, device, network))


def parse_rate(text: str, flag: str) -> float:
    """Bytes a second of a text like 10Gb/s (bits) or 900GB/s (bytes); raises UserError that names the flag."""
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{flag} {text}: expected a rate above 0 as in 10Gb/s (bits) or 900GB/s (bytes)")
    return float(match[1]) * _PREFIXES[match[2]] / (1 if match[3] == "B" else 8)


def parse_size(text: str, flag: str) -> float:
    """Bytes of a text like 16GiB or 16GB; raises UserError that names the flag."""
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{flag} {text}: expected a size above 0 as in 16GiB or 16GB")
    return float(match[1]) * (2 ** {"M": 20, "G": 30}[match[2]] if match[3] else _PREFIXES[match[2]])


def _device(arguments: argparse.Namespace, precision: str) -> Device:
    _check_share("--product_share", arguments.product_share)
    memory = size = rate = None
    if arguments.device is None:
        if not 0 < arguments.tflops < math.inf:
            raise UserError(f"--tflops {arguments.tflops:g}: expected a number above 0")
        name, peak = "given by --tflops", arguments.tflops * TERA
    else:
        name, peak, memory = arguments.device, _peak(arguments.device, precision), gpu_memory(arguments.device)
    if memory is not None:
        size, rate = memory.gib * 2**30, memory.gb_per_s * 1e9
    if arguments.memory is not None:
        size = parse_size(arguments.memory, "--memory")
    if arguments.memory_rate is not None:
        rate = parse_rate(arguments.memory_rate, "--memory_rate")
    return Device(name, peak, arguments.product_share, size, rate)


def _peak(name: str, precision: str) -> float:
    """The data sheet's, float32 as TF32; raises UserError where there is none."""
    peak = gpu_peak(name, precision, tensor_float_32=True)
    if peak is not None:
        return peak
    if gpu_peak(name, "float32", tensor_float_32=True) is not None:
        raise UserError(
            f"--device {name} does not accelerate numerics.precision = {precision}: --set numerics.precision=float16, "
            "or say what it reaches with --tflops"
        )
    raise UserError(
        f"--device {name}: not known; known are {', '.join(known_gpus())}. "
        "For another device give the peak of its matrix products, as in --tflops 125, and its --memory"
    )


def _network(arguments: argparse.Namespace) -> Network:
    _check_share("--link_share", arguments.link_share)
    if not 0 <= arguments.latency_ms < math.inf:
        raise UserError(f"--latency_ms {arguments.latency_ms:g}: expected 0 or more")
    return Network(parse_rate(arguments.link, "--link"), arguments.link_share, 1e-3 * arguments.latency_ms)


def _check_share(flag: str, share: float) -> None:
    if not 0 < share <= 1:
        raise UserError(f"{flag} {share:g}: expected a share above 0, at most 1")


def _text(recipe: Recipe, device: Device, network: Network, plans: list[PhasePlan], slow_links: list[SlowLink]) -> str:
    """The assumptions, a table for each phase and what other methods would gain, and the days of all phases."""
    method = recipe.exchange.method
    size, rate = device.memory_bytes, device.memory_bytes_per_s
    parts = [
        f"device {device.name}: {device.flops_per_s / TERA:.4g} TFLOP/s in {recipe.numerics.precision}, "
        f"of which forward and backward reach {device.product_share:.0%}; "
        f"memory {'unknown' if size is None else f'{size / 2**30:.4g} GiB'}"
        + (", rate unknown: update is not counted (--memory_rate)" if rate is None else f" at {rate / 1e9:.4g} GB/s"),
        f"link {8e-9 * network.bytes_per_s:.4g} Gb/s, of which all-reduces reach {network.share:.0%}, "
        f"{1e3 * network.latency_s:.3g} ms a hop; wire {recipe.numerics.wire}"
        + ("" if method == "gradients" else f"; exchange {method}"),
    ]
    for i, phase in enumerate(recipe.phase):
        mine = [plan for plan in plans if plan.phase == i]
        parts.append(
            f"\nphase {i}: {phase.steps:,} steps of {phase.global_batch:,} rows x {phase.sequence_length}, "
            f"micro-batches of {recipe.execution.micro_batch}"
        )
        if method != "gradients":
            parts.append(f"on {mine[-1].world_size} rank(s): {_stages(mine[-1])}")
        parts.append(lines([_HEADING, *map(_cells, mine)]))
        parts += [each.describe() for each in slow_links if each.phase == i]
        if size is not None and (large := [plan for plan in mine if plan.memory_bytes > size]):
            parts.append(
                f"memory: {large[0].memory_bytes / 2**30:.1f} GiB a rank are more than the device's "
                f"{size / 2**30:.4g} GiB: --set execution.micro_batch=N with a smaller N, or execution.recompute=layer"
            )
    if len(recipe.phase) > 1:
        ranks = dict.fromkeys(plan.world_size for plan in plans)
        days = {n: sum(plan.days for plan in plans if plan.world_size == n) for n in ranks}
        parts.append("\nall phases: " + ", ".join(f"{_days(days[n])} days on {n} rank(s)" for n in ranks))
    return "\n".join(parts)


_HEADING = (
    "ranks",
    "micro-batches",
    "step s",
    "fwd+bwd s",
    "accumulate s",
    "update s",
    "MB sent",
    "exchange s",
    "exposed s",
    "memory GiB",
    "rows/s",
    "tokens/s",
    "efficiency",
    "days",
)


def _cells(plan: PhasePlan) -> tuple[str, ...]:
    return (
        str(plan.world_size),
        str(plan.micro_batches),
        f"{plan.step_s:.4g}",
        f"{plan.forward_backward_s:.4g}",
        f"{plan.accumulation_s:.3g}",
        f"{plan.update_s:.3g}",
        f"{plan.sent_bytes / 1e6:.4g}",
        f"{plan.communication_s:.3g}",
        f"{plan.exposed_s:.3g}",
        f"{plan.memory_bytes / 2**30:.1f}",
        f"{plan.rows_per_s:,.1f}",
        f"{plan.tokens_per_s:,.0f}",
        f"{plan.efficiency:.1%}",
        _days(plan.days),
    )


def _stages(plan: PhasePlan) -> str:
    return "; ".join(
        f"{stage.name} in {stage.share:.0%} of the steps, {stage.sent_bytes / 1e6:.4g} MB a rank, "
        f"{stage.exposed_s:.3g} s exposed"
        for stage in plan.stages
    )


def _days(days: float) -> str:
    return f"{days:.3g}" if days < 100 else f"{days:,.0f}"
