#!/usr/bin/env python3
"""How far plans are from what others published and from what was measured here: nothing runs, seconds of arithmetic.

python lab/planner.py [--json]

Each group of rows is planned by the program's own model (bert_horovod/costs/planner.py) from its row marked * and data
sheets: * gives the share of a device's peak, or the rate of a link. A row that the model cannot reproduce within 10 %
has the reason beside it; a row that has a reason and is reproduced, or the reverse, makes the exit code 1.

Published: NVIDIA (DeepLearningExamples, TensorFlow2/LanguageModeling/BERT, README): BERT-large, LAMB, float16 gradients
summed after all micro-batches; a host's link is one card's of 100 (DGX-2H) or 200 Gb/s (DGX A100), through which a ring
enters a host, of the 8 that it has. HKBU-HPML (ddl-benchmarks, 2020-05-29): rows of 64, float32, four GPUs a host on
PCIe; an all-reduce a tensor, or merged ones (ByteScheduler and BytePS do something else, and are left out). Measured
here by lab/scaling.py at 24eb104 and 4344ab0: BERT-small, 16 rows of 128, links as they were made, steps without
communication as they were measured. A plan knows no hosts that share cores, but four hosts here share two: what a plan
exposes for them is multiplied by what sharing a core costs two hosts (at 60797a7, `taskset -c 0` against two cores).
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.costs.clusters import DeviceSheet, device_of, parse_rate
from bert_horovod.costs.gpus import data_sheet
from bert_horovod.costs.planner import LINK_SHARE, SPREAD, Device, Network, plan_phase
from bert_horovod.measuring.configuration import size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.tables import lines

WITHIN = 0.1
V100 = data_sheet("V100").peaks
FLOAT32_PEAK = V100.float32 / V100.float16
NVLINK = 120e9  # bytes a second of an all-reduce within a host, so fast that it hardly counts
INFINIBAND_S, ETHERNET_S = 5e-6, 5e-5  # of a message
AT_ONCE = ("execution.bucket_bytes=1099511627776", "execution.reduction=ring")  # one all-reduce, after backward
A_TENSOR = ("execution.bucket_bytes=4", "execution.reduction=ring")
NOT_STEADY = "16 nodes wait longer for a sum (0.30 s) than 32 do (0.15 s): no model of one network gives both"
SUPERLINEAR = "published are 81.3 rows/s a GPU on 8, 87.9 on 256 and 96.5 on one: no plan is faster with more ranks"
NOTHING_HIDDEN = (
    "0.18 s of a sum of 0.19 s are exposed, but a plan hides most of it; its method for this row is a guess"
)
GROWING_RING = "published sums take 1.09 times as long as a ring's bytes would with each doubling, perhaps due to TCP"
FLOAT32 = "a plan gives float32 the same share of its peak as float16, 39 or 33 %; the published shares are 74 and 70 %"


class Row(NamedTuple):
    """One figure."""

    group: str
    what: str
    figure: float  # rows a second, or seconds of a step
    planned: float
    calibrates: bool = False
    reason: str = ""  # why the model cannot reproduce it

    @property
    def deviation(self) -> float:
        """Of the plan, as a share of the figure."""
        return self.planned / self.figure - 1


def solved(figure: float, planned: Callable[[float], float], low: float = 1e3, high: float = 1e16) -> float:
    """The argument at which a plan, which rises with it, gives the figure."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if planned(middle) > figure else (middle, high)
    return low


def rows_per_s(recipe: Recipe, ranks: int, device: Device, network: Network) -> float:
    """Of all ranks."""
    return plan_phase(recipe, 0, ranks, device, network).rows_per_s


def with_flops(device: Device, flops_per_s: float) -> Device:
    """A device that reaches so many."""
    return dataclasses.replace(device, flops_per_s=flops_per_s, product_share=1.0)


def nvidia() -> Iterator[Row]:
    """Table 1."""
    v100, a100 = ("V100 SXM2 32GB", "100Gb/s"), ("A100 SXM4 80GB", "200Gb/s")
    v100_128, v100_512 = ((4, 789.8), (8, 1561.8), (16, 3078.0)), ((4, 158.5), (8, 312.0), (16, 614.9))
    dgx2_128, dgx2_512 = ((64, 13370), (256, 42697), (512, 84223)), ((64, 2678), (256, 7835), (512, 18787))
    a100_128, a100_512 = ((1, 485.6), (256, 110281)), ((1, 96.5), (256, 22506))
    for name, (sheet, rate), hosts_of, length, micro_batch, (marked, figure), rows, reasons in (
        ("V100", v100, 16, 128, 60, (1, 206.5), v100_128, {}),
        ("V100", v100, 16, 512, 10, (1, 40.95), v100_512, {}),
        ("DGX-2H", v100, 16, 128, 60, (16, 3528.5), dgx2_128, {256: NOT_STEADY}),
        ("DGX-2H", v100, 16, 512, 10, (16, 678), dgx2_512, {256: NOT_STEADY}),
        ("DGX A100", a100, 8, 128, 312, (8, 3799), a100_128, {}),
        ("DGX A100", a100, 8, 512, 40, (8, 650), a100_512, {1: SUPERLINEAR, 256: SUPERLINEAR}),
    ):
        device = device_of(DeviceSheet(sheet), sheet, "float16")
        network = Network(parse_rate(rate, ""), LINK_SHARE, INFINIBAND_S, hosts_of, NVLINK, INFINIBAND_S)
        batch = 61440 if length == 128 else 30720

        def large(ranks: int, length=length, micro_batch=micro_batch, batch=batch) -> Recipe:
            overrides = [f"phase.0.global_batch={batch}", "optimizer.name=lamb", *AT_ONCE]
            overrides += ["numerics.precision=float16", "numerics.wire=float16"]
            return size_recipe("large", overrides, min(micro_batch, batch // ranks), length)

        def rate_of(flops: float, large=large, ranks=marked, device=device, network=network) -> float:
            return rows_per_s(large(ranks), ranks, with_flops(device, flops), network)

        flops = solved(figure, rate_of)
        share = flops / device.flops_per_s
        device = with_flops(device, flops)
        group = f"{name}, length {length}, rows/s"
        yield Row(group, f"{marked} GPU * ({share:.0%} of the peak)", figure, figure, True)
        if name == "V100":
            figure = {128: 49.97, 512: 11.06}[length]
            slower = dataclasses.replace(device, flops_per_s=flops * FLOAT32_PEAK)
            overrides = ["numerics.precision=float32", f"phase.0.global_batch={batch}"]
            planned = rows_per_s(size_recipe("large", overrides, micro_batch, length), 1, slower, network)
            yield Row(group, "1 GPU, float32", figure, planned, reason=FLOAT32)
        for ranks, figure in rows:
            planned = rows_per_s(large(ranks), ranks, device, network)
            yield Row(group, f"{ranks} GPU", figure, planned, reason=reasons.get(ranks, ""))


def hkbu() -> Iterator[Row]:
    """Table 2."""
    device = Device("GPU", 1.0, 1.0, spread=SPREAD)

    def model(name: str, rows: int, kind: str, ranks: int) -> Recipe:
        overrides = [f"phase.0.global_batch={rows * ranks}", "numerics.wire=float32"]
        return size_recipe(name, [*overrides, *(A_TENSOR if kind == "a tensor" else ())], rows, 64)

    def large(kind: str, ranks: int) -> Recipe:
        return model("large", 8, kind, ranks)

    def network(bytes_per_s: float, latency_s: float, inside: float) -> Network:
        return Network(bytes_per_s, 1.0, latency_s, 4, inside, INFINIBAND_S)

    free = network(math.inf, 0.0, math.inf)
    device = with_flops(device, solved(49, lambda each: rows_per_s(large("", 1), 1, with_flops(device, each), free)))
    yield Row("HKBU, BERT-large, rows/s", "1 GPU *", 49, 49, True)
    ideal = LINK_SHARE * parse_rate("100Gb/s", "")
    inside = solved(
        106.8, lambda each: rows_per_s(large("merged", 8), 8, device, network(ideal, INFINIBAND_S, each)), 1e8, ideal
    )
    links = {"100 Gb/s InfiniBand": network(ideal, INFINIBAND_S, inside)}
    for name, kind, figure in (("10 Gb/s", "a tensor", 29.1), ("100 Gb/s TCP", "merged", 62.0)):

        def with_link(rate: float, kind=kind) -> float:
            return rows_per_s(large(kind, 8), 8, device, network(rate, ETHERNET_S, inside))

        links[name] = network(solved(figure, with_link, 1e6, inside), ETHERNET_S, inside)
    for name, kind, marked, figures in (
        ("10 Gb/s", "a tensor", 8, (56.0, 29.1, 53.4, 102.0)),
        ("10 Gb/s", "merged", 0, (57.3, 30.0, 54.3, 105.0)),
        ("100 Gb/s TCP", "a tensor", 0, (56.0, 54.8, 99.0, 174.8)),
        ("100 Gb/s TCP", "merged", 8, (57.5, 62.0, 107.5, 191.5)),
        ("100 Gb/s InfiniBand", "a tensor", 0, (56.3, 101.7, 185.4, 339.8)),
        ("100 Gb/s InfiniBand", "merged", 8, (57.5, 106.8, 205.8, 400.2)),
    ):
        link = links[name]
        rate = min(link.bytes_per_s, link.inside_bytes_per_s)
        for ranks, figure in zip((4, 8, 16, 32), figures, strict=True):
            setup = f"{ranks} GPU" + (f" * ({8e-9 * rate:.3g} Gb/s)" if ranks == marked else "")
            planned = rows_per_s(large(kind, ranks), ranks, device, link)
            reason = GROWING_RING if (name, kind, ranks) == ("100 Gb/s TCP", "merged", 32) else ""
            yield Row(f"HKBU, BERT-large, {name}, {kind}, rows/s", setup, figure, planned, ranks == marked, reason)
    one = model("base", 64, "", 1)
    base = with_flops(device, solved(212.8, lambda each: rows_per_s(one, 1, with_flops(device, each), free)))
    yield Row("HKBU, BERT-base, rows/s", "1 GPU *", 212.8, 212.8, True)
    for name, figure, reason in (("10 Gb/s", 2013, ""), ("100 Gb/s InfiniBand", 4099, NOTHING_HIDDEN)):
        planned = rows_per_s(model("base", 64, "a tensor", 32), 32, base, links[name])
        yield Row("HKBU, BERT-base, rows/s", f"32 GPU, {name}, a tensor", figure, planned, reason=reason)


# Hosts, Gb/s, micro-batches; of float16 and float32 the step, and what of it communication adds, in seconds.
ONE_CORE = {(2, 1.0, 4): ((7.224, 0.044), (7.371, 0.185))}
TWENTY = {
    (2, 1.0, 1): ((0.6825, 0.491), (1.213, 1.07)),
    (2, 1.0, 4): ((0.9914, 0.511), (1.407, 0.965)),
    (2, 1.0, 16): ((2.169, 0.539), (2.594, 1.002)),
    (2, 0.1, 1): ((5.213, 5.041), (10.03, 9.898)),
    (2, 0.1, 4): ((5.543, 5.094), (10.43, 9.98)),
    (2, 0.1, 16): ((6.57, 4.922), (11.8, 10.208)),
    (4, 1.0, 1): ((1.184, 0.89), (1.683, 1.547)),
    (4, 1.0, 4): ((1.585, 0.957), (2.158, 1.633)),
    (4, 1.0, 16): ((2.789, 0.994), (3.207, 1.484)),
    (4, 0.1, 1): ((7.796, 7.536), (15.37, 15.209)),
}
# Gb/s, micro-batches; of both wires what communication adds to a step of 2 hosts on one core, and on a core each.
SHARED_CORE = {
    (1.0, 1): ((0.597, 0.538), (1.126, 1.016)),
    (1.0, 4): ((0.672, 0.569), (1.174, 1.075)),
    (1.0, 16): ((0.964, 0.755), (1.244, 1.251)),
    (0.1, 1): ((4.937, 5.088), (10.269, 9.997)),
}


def measured_here() -> Iterator[Row]:
    """What lab/scaling.py measured."""
    for pace, figures in ((1, ONE_CORE), (20, TWENTY)):
        for ((hosts, rate, micro_batches), of_wires), i in product(figures.items(), range(2)):
            (step_s, exposed_s), wire = of_wires[i], ("float16", "float32")[i]
            overrides = [f"phase.0.global_batch={16 * hosts * micro_batches}", f"numerics.wire={wire}"]
            recipe = size_recipe("small", overrides)
            network = Network(rate * 1e9 / 8)

            def micro_batch_rate(flops: float, recipe=recipe, network=network) -> float:
                device = Device("core", flops, 1.0)
                return 1 / plan_phase(recipe, 0, 1, device, network).forward_backward_s

            flops = solved(pace / (1.76 * hosts * micro_batches), micro_batch_rate)
            plan = plan_phase(recipe, 0, hosts, Device("core", flops, 1.0), network)
            setup = f"{hosts} hosts, {rate:g} Gb/s, K = {micro_batches}, {wire}"
            shared_s, own_s = SHARED_CORE[rate, micro_batches][i] if hosts == 4 else (1.0, 1.0)
            planned = step_s - exposed_s + plan.exposed_s * shared_s / own_s
            yield Row(f"here, {pace} x a core's pace, s", setup, step_s, planned)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    arguments = parser.parse_args()
    rows = [*nvidia(), *hkbu(), *measured_here()]
    if arguments.json:
        print(json.dumps([row._asdict() | {"deviation": row.deviation} for row in rows]))
    else:
        cells = [("", "", "figure", "planned", "deviation")]
        cells += [
            (row.group, row.what, f"{row.figure:,.4g}", f"{row.planned:,.4g}", f"{row.deviation:+.1%}") for row in rows
        ]
        print(lines(cells))
    named = [row for row in rows if row.reason]
    for row in named:
        print(f"{row.group}, {row.what}: {row.reason}", file=sys.stderr)
    return int({row for row in rows if abs(row.deviation) > WITHIN} != set(named))


if __name__ == "__main__":
    sys.exit(main())
