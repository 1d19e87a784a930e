"""Measure rows/s on growing parts of a cluster, each rank with the same work: 1M1G, 1M2G, ..., as in the paper."""

import json
import re
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bert_horovod.costs.choices import doubling
from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring.child_command import run_command
from bert_horovod.measuring.configuration import step_flops
from bert_horovod.recipe.sections import Recipe

Hosts = dict[str, int]  # slots by name, as cluster/launching/hostfiles.py reads them

_LAYOUT = re.compile(r"([1-9]\d{0,4})M([1-9]\d{0,3})G")


class Layout(NamedTuple):
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


def parse_layout(text: str) -> Layout:
    """The layout of a text such as 2M8G; raises UserError."""
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise UserError(f"--layout {text}: expected machines and devices of each, as in 2M8G")
    return Layout(int(match[1]), int(match[2]))


def usual_layouts(hosts: Hosts) -> list[Layout]:
    """One machine with 1, 2, 4, ... and all its devices; 2, 4, ... and all machines with one device each, and with all.

    Where there are several machines, "all devices" of one are as many as every machine has.
    """
    devices = min(hosts.values())
    layouts = [Layout(1, count) for count in doubling(max(hosts.values()))]
    for machines in doubling(len(hosts))[1:]:
        layouts += [Layout(machines, count) for count in sorted({1, devices})]
    return layouts


class Measured(NamedTuple):
    """A layout, with the JSON object of `bench comm --json` for each round."""

    layout: Layout
    rounds: list[dict[str, Any]]

    def median(self, read: Callable[[dict[str, Any]], float]) -> float:
        """The median over rounds."""
        return statistics.median(read(answer) for answer in self.rounds)


def measure(
    layouts: list[Layout],
    rounds: int,
    run: Callable[[Layout], dict[str, Any]],
    tell: Callable[[int, Layout, dict[str, Any] | RunError], None],
) -> Iterator[Measured]:
    """Run the layouts in turn, round after round; a layout that fails in a round is left out of it.

    Args:
        layouts: each one once.
        rounds: at least 1.
        run: runs `bench comm --json` on a layout and returns its JSON object; may raise RunError.
        tell: called after each run with the number of runs done, the layout, and the JSON object or the error.
    """
    answers_of: dict[Layout, list[dict[str, Any]]] = {layout: [] for layout in layouts}
    done = 0
    for _ in range(rounds):
        for layout in layouts:
            try:
                answer: dict[str, Any] | RunError = run(layout)
                answers_of[layout].append(answer)
            except RunError as error:
                answer = error
            done += 1
            tell(done, layout, answer)
    return (Measured(layout, answers) for layout, answers in answers_of.items() if answers)


def run_layout(layout: Layout, hosts: Hosts, launch_words: list[str], bench_words: list[str]) -> dict[str, Any]:
    """Run `bench comm --json` on a layout by `launch`, in processes of its own; returns its JSON object.

    Args:
        layout: the part of the cluster.
        hosts: all hosts of the cluster.
        launch_words: further flags of `launch`.
        bench_words: further flags of `bench comm`, the global batch included.

    Raises:
        RunError: the ranks failed; the message has the last lines of their error output.
        UserError: they refused what they were given.
    """
    hosts_text = ",".join(f"{name}:{slots}" for name, slots in layout.hosts(hosts).items())
    words = ["launch", "-np", str(layout.ranks), "-H", hosts_text, *launch_words, "--", "bench", "comm", "--json"]
    ended = run_command([*words, *bench_words])
    lines = [line for line in ended.output.splitlines() if line.startswith("{")]
    if ended.code or not lines:
        last_lines = "\n  ".join(ended.errors.strip().splitlines()[-5:])
        if ended.code == UserError.exit_code:
            raise UserError(last_lines.partition("error: ")[2] or last_lines)
        raise RunError(f"ended with {ended.code}: {last_lines}")
    return json.loads(lines[-1])


def results(
    measured: list[Measured], recipe: Recipe, micro_batches: int, device_hour: float | None, currency: str
) -> dict[str, Any]:
    """The JSON object of `bench scaling --json`; `plan --compute` and `--link`, and `report --scaling`, read it.

    Args:
        measured: the measurements, one for each layout.
        recipe: the recipe that was measured.
        micro_batches: of a rank's step, on each layout.
        device_hour: price of one device for one hour; None: not known.
        currency: of the price.
    """
    alone = next((layout_measured for layout_measured in measured if layout_measured.layout.ranks == 1), None)
    alone_rows_per_s = alone.median(lambda answer: answer["rows_per_s"]) if alone else None
    lines = [_line(layout_measured, recipe, alone_rows_per_s, device_hour) for layout_measured in measured]
    report: dict[str, Any] = {
        "configuration": measured[0].rounds[0]["configuration"],
        "micro_batches": micro_batches,
        "rounds": len(measured[0].rounds),
        "currency": currency,
        "lines": lines,
    }
    if alone:
        passes_s = alone.median(lambda answer: _passes_s(answer["delays"]))
        step_s = passes_s + alone.median(lambda answer: answer["delays"]["update_s"])
        report["compute"] = {
            "configuration": report["configuration"],
            "step_s": step_s,
            "forward_backward_s": passes_s,
            "flops_per_s": step_flops(recipe) / step_s,
        }
    widest = max(measured, key=lambda layout_measured: (layout_measured.layout.machines, layout_measured.layout.ranks))
    if widest.layout.machines > 1:
        last = widest.rounds[-1]
        report |= {key: last[key] for key in ("world_size", "link", "reduction")}
    return report


def _line(
    measured: Measured, recipe: Recipe, alone_rows_per_s: float | None, device_hour: float | None
) -> dict[str, Any]:
    layout = measured.layout
    rows_per_s = measured.median(lambda answer: answer["rows_per_s"])
    tokens_per_s = rows_per_s * recipe.phase[0].sequence_length
    speed_up = rows_per_s / alone_rows_per_s if alone_rows_per_s else None
    return {
        "layout": str(layout),
        "machines": layout.machines,
        "ranks": layout.ranks,
        "step_s": measured.median(lambda answer: answer["step_s"].get("overlapped", answer["step_s"]["off"])),
        "exposed_s": measured.median(lambda answer: answer.get("exposed_s", 0.0)),
        "rows_per_s": rows_per_s,
        "tokens_per_s": tokens_per_s,
        "speed_up": speed_up,
        "efficiency": None if speed_up is None else speed_up / layout.ranks,
        "price_per_billion_tokens": None
        if device_hour is None
        else layout.ranks * device_hour * 1e9 / (3600 * tokens_per_s),
    }


def _passes_s(delays: dict[str, Any]) -> float:
    """Forward and backward of a micro-batch, in seconds."""
    return delays["forward_s"] + delays["head_s"] + sum(delays["layers_s"]) + delays["embeddings_s"]
