"""Measure rows/s on growing parts of a cluster, each rank with the same work: 1M1G, 1M2G, ..., as in the paper."""

import re
import statistics
from typing import Any, NamedTuple

from bert_horovod.costs.choices import doubling
from bert_horovod.errors import UserError
from bert_horovod.measuring.bench_child import run_bench
from bert_horovod.recipe.sections import Recipe

Hosts = dict[str, int]  # slots by name, as cluster/launching/hostfiles.py reads them

_LAYOUT = re.compile(r"([1-9]\d{0,4})M([1-9]\d{0,3})G")


class RankLayout(NamedTuple):
    """A part of the cluster: some machines, with the same number of devices on each."""

    machines: int
    devices: int  # of each machine; a rank for each device

    def __str__(self) -> str:
        return f"{self.machines}M{self.devices}G"

    @property
    def ranks(self) -> int:
        """The number of ranks: one for each device of each machine."""
        return self.machines * self.devices

    def hosts(self, hosts: Hosts) -> Hosts:
        """The first `machines` hosts that have `devices` slots or more, with `devices` slots each; raises UserError."""
        able = [name for name, slots in hosts.items() if slots >= self.devices]
        if len(able) < self.machines:
            raise UserError(
                f"--layout {self}: of {len(hosts)} host(s) {len(able)} have {self.devices} slot(s) or more; expected "
                f"{self.machines}"
            )
        return dict.fromkeys(able[: self.machines], self.devices)


def parse_layout(text: str) -> RankLayout:
    """The layout of a text such as 2M8G; raises UserError."""
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise UserError(f"--layout {text}: expected machines and devices of each, as in 2M8G")
    return RankLayout(int(match[1]), int(match[2]))


def usual_layouts(hosts: Hosts) -> list[RankLayout]:
    """One machine with 1, 2, 4, ... and all its devices; 2, 4, ... and all machines with one device each, and with all.

    Where there are several machines, "all devices" of one are as many as every machine has.
    """
    devices = min(hosts.values())
    layouts = [RankLayout(1, count) for count in doubling(max(hosts.values()))]
    for machines in doubling(len(hosts))[1:]:
        layouts += [RankLayout(machines, count) for count in sorted({1, devices})]
    return layouts


def run_layout(layout: RankLayout, hosts: Hosts, launch_words: list[str], bench_words: list[str]) -> dict[str, Any]:
    """Run `bench step --json` on a layout by `launch`, in processes of its own; returns its JSON object.

    Raises:
        RunError, UserError: see run_bench.
    """
    hosts_text = ",".join(f"{name}:{slots}" for name, slots in layout.hosts(hosts).items())
    words = ["launch", "-np", str(layout.ranks), "-H", hosts_text, *launch_words, "--", "bench", "step", "--json"]
    words += ["--communication", "on", "off"] if layout.ranks > 1 else []
    return run_bench([*words, *bench_words])


def results(
    measured: dict[RankLayout, list[dict[str, Any]]],
    recipe: Recipe,
    micro_batches: int,
    price: float | None,
    currency: str,
) -> dict[str, Any]:
    """The JSON object of `bench scaling --json`; `plan --compute` and `--link`, and `report --scaling`, read it.

    `measured`: what `bench step --json` printed in each round, by layout. `price`: of one device for one hour; None:
    not known.
    """
    alone = next((answers for layout, answers in measured.items() if layout.ranks == 1), None)
    alone_rows_per_s = median_of(alone, "rows_per_s") if alone else None
    lines = [_line(layout, answers, recipe, alone_rows_per_s, price) for layout, answers in measured.items()]
    first = next(iter(measured.values()))
    report: dict[str, Any] = {
        "configuration": first[0]["configuration"],
        "micro_batches": micro_batches,
        "rounds": len(first),
        "currency": currency,
        "lines": lines,
    }
    if alone:
        report["compute"] = {"configuration": report["configuration"], "micro_batches": micro_batches} | {
            name: median_of(alone, name) for name in ("step_s", "forward_backward_s", "flops_per_s")
        }
    widest = max(measured, key=lambda layout: (layout.machines, layout.ranks))
    if widest.machines > 1:
        report |= {name: measured[widest][-1][name] for name in ("world_size", "link", "reduction")}
    return report


def median_of(answers: list[dict[str, Any]], name: str) -> float:
    """The median of a figure over rounds; 0 where an answer has none."""
    return statistics.median(answer.get(name, 0.0) for answer in answers)


def _line(
    layout: RankLayout,
    answers: list[dict[str, Any]],
    recipe: Recipe,
    alone_rows_per_s: float | None,
    price: float | None,
) -> dict[str, Any]:
    rows_per_s = median_of(answers, "rows_per_s")
    tokens_per_s = rows_per_s * recipe.phase[0].sequence_length
    speed_up = rows_per_s / alone_rows_per_s if alone_rows_per_s else None
    return {
        "layout": str(layout),
        "machines": layout.machines,
        "ranks": layout.ranks,
        "step_s": median_of(answers, "step_s"),
        "exposed_s": median_of(answers, "exposed_s"),
        "rows_per_s": rows_per_s,
        "tokens_per_s": tokens_per_s,
        "speed_up": speed_up,
        "efficiency": None if speed_up is None else speed_up / layout.ranks,
        "price_per_billion_tokens": None if price is None else layout.ranks * price * 1e9 / (3600 * tokens_per_s),
    }
