"""Plans as tables and advice on a terminal, also for machines that are taken away, and drawn as SVG."""

import math
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bert_horovod.costs.choices import LEAST_WORTH, WORTH, Choice, knee, worth_until
from bert_horovod.costs.clusters import SpotPlan
from bert_horovod.costs.derived import depth
from bert_horovod.costs.gpus import TERA
from bert_horovod.costs.planner import Device, Network, PhasePlan
from bert_horovod.costs.prices import Bill, Prices
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.tables import lines
from bert_horovod.wording import duration, gibibytes, three_figures

_PARTS = (
    *("ranks", "micro-batches", "step s", "fwd+bwd s", "kernels s", "accumulate s", "update s", "waiting s", "MB sent"),
    *("exchange s", "exposed s", "input s", "memory GiB"),
)
_TOTALS = ("ranks", "rows/s", "tokens/s", "of a device", "efficiency", "E x speed-up", "days", "device-hours")


@dataclass(frozen=True)
class PhaseAdvice:
    """Advice for a phase, computed from its plans; for the largest number of ranks."""

    phase: int
    world_size: int
    knee: int
    worth_until: int  # 1: fewer ranks than the least planned
    largest_micro_batch: dict[str, int] | None  # rows, by execution.recompute; None: the memory is not known
    wished_efficiency: float
    choices: list[Choice]  # empty on one rank
    step_s: dict[str, float]  # by name of a setting that sends less than float32 gradients
    int8_pays_below_bytes_per_s: float | None  # None: at no rate
    least: int = 1  # ranks planned

    def describe(self, micro_batch: int) -> list[str]:
        """Lines for people; `micro_batch`: the recipe's."""
        lines = []
        if self.largest_micro_batch is not None:
            rows = ", ".join(f"{rows} with {recompute!r}" for recompute, rows in self.largest_micro_batch.items())
            lines.append(
                f"the largest micro-batch that fits by execution.recompute: {rows} (estimates; now {micro_batch})"
            )
        if not self.choices:
            return lines
        several = self.least < self.world_size
        worth = f"until {self.worth_until} rank(s) each one added brings at least"
        if self.worth_until < self.least:
            worth = f"on {self.least} ranks each one added brings less than"
        lines.append(
            f"efficiency x speed-up is largest on {self.knee} rank(s); " * several
            + f"{worth} {LEAST_WORTH:.0%} of the rows/s of a rank alone"
        )
        reaching = [choice for choice in self.choices if choice.efficiency >= self.wished_efficiency]
        best = max(self.choices, key=lambda choice: choice.efficiency)
        advice = f"cheapest: {reaching[0].setting}" if reaching else f"nothing here reaches it; most has {best.setting}"
        lines.append(f"for an efficiency of {self.wished_efficiency:.0%} on {self.world_size} ranks, {advice}")
        lines.extend(
            f"  {choice.efficiency:6.1%}  {three_figures(choice.days)} days  {choice.setting}"
            + (f" ({choice.price})" if choice.price else "")
            for choice in self.choices
        )
        lines.append(self.slow_link())
        return lines

    def slow_link(self) -> str:
        """A line with the step times of settings that send less, and the link rate below which int8 pays."""
        steps = ", ".join(f"{step_s:.4g} s with {setting}" for setting, step_s in self.step_s.items())
        rate = self.int8_pays_below_bytes_per_s
        if rate is None:
            return f"a step on {self.world_size} ranks: {steps}; int8 pays over float16 at no rate of the link"
        return (
            f'a step on {self.world_size} ranks: {steps}; below {8e-9 * rate:.3g} Gb/s numerics.wire = "int8" pays: '
            f"more than {WORTH:.0%} of float16's step is exposed communication"
        )


def plan_text(
    recipe: Recipe,
    device: Device,
    network: Network,
    plans: Sequence[PhasePlan],
    bills: Sequence[Bill],
    prices: Prices | None,
    advice: Sequence[PhaseAdvice],
) -> str:
    """Text, as wide as the terminal: the assumptions; for each phase tables and advice; totals of all phases."""
    width = shutil.get_terminal_size().columns
    parts = [_device_line(recipe, device), _network_line(recipe, network)]
    currency = prices.currency if prices else ""
    for i, phase in enumerate(recipe.phase):
        of_phase = [(plan, bill) for plan, bill in zip(plans, bills, strict=True) if plan.phase == i]
        parts.append(
            f"\nphase {i}: {phase.steps:,} steps of {phase.global_batch:,} rows x {phase.sequence_length}, "
            f"micro-batches of {recipe.execution.micro_batch}" + (f"; {part}" if (part := depth(recipe, i)) else "")
        )
        last = of_phase[-1][0]
        if [stage.name for stage in last.stages] != ["dense"]:
            parts.append(f"on {last.world_size} rank(s): {_stages(last)}")
        parts.append(lines([_PARTS, *(_parts(plan, device) for plan, _ in of_phase)], width))
        totals = _totals([plan for plan, _ in of_phase], [bill for _, bill in of_phase], currency)
        parts.append(lines(totals, width))
        room = device.allocatable_bytes
        if room is not None and (large := [plan for plan, _ in of_phase if plan.memory_bytes > room]):
            parts.append(
                f"memory: {gibibytes(large[0].memory_bytes)} a rank are more than the "
                f"{gibibytes(room)} that TensorFlow may allocate: --set execution.micro_batch=N with a smaller N, "
                "or execution.recompute=layer"
            )
        parts += advice[i].describe(recipe.execution.micro_batch)
    if len(recipe.phase) > 1:
        parts += _all_phases(plans, bills, currency)
    if prices is not None and prices.device_hour < 0:
        parts.append("cost is not known: add under [costs] of the cluster file a line as device_hour = 1.5")
    if prices is not None and prices.device_w < 0:
        parts.append("energy is not known: add under [costs] of the cluster file a line as device_w = 350.0")
    return "\n".join(_wrapped(line, width) for part in parts for line in part.split("\n"))


def _wrapped(line: str, width: int) -> str:
    """A line as several of at most so many characters, the later ones indented by four more."""
    if len(line) <= width:
        return line
    indent = " " * (4 + len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _device_line(recipe: Recipe, device: Device) -> str:
    size, rate = device.memory_bytes, device.memory_bytes_per_s
    return (
        f"device {device.name}{_sheet(device)}: {device.flops_per_s / TERA:.4g} TFLOP/s in "
        f"{recipe.numerics.precision}, of which forward and backward reach {device.product_share:.0%}; "
        f"memory {'unknown' if size is None else _memory(size, device.allocatable_bytes)}"
        + (", rate unknown: update is not counted" if rate is None else f" at {rate / 1e9:.4g} GB/s")
        + (f"; speeds differ by {device.spread:.1%}" if device.spread else "")
    )


def _sheet(device: Device) -> str:
    """The product whose data sheet was taken, if the name may mean several."""
    named = device.sheet.lower() in device.name.lower()  # any name holds "", the sheet of an unknown device
    return "" if named else f" (here {device.sheet})"


def _memory(size: float, room: float | None) -> str:
    text = f"{size / 2**30:.4g} GiB"
    return text if room is None else f"{text} ({room / 2**30:.1f} to allocate)"


def _network_line(recipe: Recipe, network: Network) -> str:
    method = recipe.exchange.method
    if network.bytes_per_s == math.inf and network.devices == 1:
        return "one rank, no link (for several ranks add a link as --link 10Gb/s)"
    inside = f"inside a host of {network.devices} {_gigabits(network.inside_bytes_per_s)}"
    link = (
        f"link {_gigabits(network.bytes_per_s)}, of which all-reduces reach {network.share:.0%}, "
        f"{1e3 * network.latency_s:.3g} ms a hop" + (f"; {inside}" if network.devices > 1 else "")
    )
    return (
        (f"one host; {inside}" if network.bytes_per_s == math.inf else link)
        + f"; wire {recipe.numerics.wire}"
        + (f"; exchange {method}" if recipe.exchange.sends_less(recipe) else "")
    )


def _gigabits(bytes_per_s: float) -> str:
    return f"{8e-9 * bytes_per_s:.4g} Gb/s" if math.isfinite(bytes_per_s) else "at no cost (its rate is not given)"


def _parts(plan: PhasePlan, device: Device) -> tuple[str, ...]:
    memory = f"{plan.memory_bytes / 2**30:.1f}"
    return (
        str(plan.world_size),
        str(plan.micro_batches),
        f"{plan.step_s:.4g}",
        f"{plan.forward_backward_s:.4g}",
        f"{plan.kernels_s:.3g}",
        f"{plan.accumulation_s:.3g}",
        f"{plan.update_s:.3g}",
        f"{plan.waiting_s:.3g}",
        f"{plan.sent_bytes / 1e6:.4g}",
        f"{plan.communication_s:.3g}",
        f"{plan.exposed_s:.3g}",
        f"{plan.input_s:.3g}",
        memory if device.allocatable_bytes is None else f"{memory} of {device.allocatable_bytes / 2**30:.1f}",
    )


def _totals(plans: Sequence[PhasePlan], bills: Sequence[Bill], currency: str) -> list[tuple[str, ...]]:
    price, kwh = bills[0].price is not None, bills[0].kwh is not None
    cells = [(*_TOTALS, *([f"cost {currency}".strip()] if price else []), *(["kWh"] if kwh else []))]
    best, last = knee(plans), worth_until(plans)
    for plan, bill in zip(plans, bills, strict=True):
        marks = ("knee " if plan.world_size == best else "") + ("last " if plan.world_size == last else "")
        speed_up = plan.efficiency * plan.world_size
        cells.append(
            (
                str(plan.world_size),
                f"{plan.rows_per_s:,.1f}",
                f"{plan.tokens_per_s:,.0f}",
                f"{plan.tokens_per_s / plan.world_size:,.0f}",
                f"{plan.efficiency:.1%}",
                f"{marks if len(plans) > 1 else ''}{plan.efficiency * speed_up:.3g}",
                three_figures(plan.days),
                f"{bill.device_hours:,.4g}",
                *([f"{bill.price:,.0f}"] if price else []),
                *([f"{bill.kwh:,.0f}"] if kwh else []),
            )
        )
    return cells


def _all_phases(plans: Sequence[PhasePlan], bills: Sequence[Bill], currency: str) -> list[str]:
    lines = ["\nall phases:"]
    for ranks in dict.fromkeys(plan.world_size for plan in plans):
        of_ranks = [(plan, bill) for plan, bill in zip(plans, bills, strict=True) if plan.world_size == ranks]
        text = f"{ranks:>6} rank(s): {three_figures(sum(plan.days for plan, _ in of_ranks))} days"
        text += f", {sum(bill.device_hours for _, bill in of_ranks):,.0f} device-hours"
        if of_ranks[0][1].price is not None:
            text += f", {sum(bill.price or 0 for _, bill in of_ranks):,.0f} {currency}".rstrip()
        if of_ranks[0][1].kwh is not None:
            text += f", {sum(bill.kwh or 0 for _, bill in of_ranks):,.0f} kWh"
        lines.append(text)
    return lines


def _stages(plan: PhasePlan) -> str:
    return "; ".join(
        f"{stage.name} in {stage.share:.0%} of the steps, {stage.sent_bytes / 1e6:.4g} MB a rank, "
        f"{stage.exposed_s:.3g} s exposed"
        for stage in plan.stages
    )


_HEADS = ("ranks", "hosts", "hosts lost", "days", "device-hours", "save every", "best every", "best steps", "best days")


def spot_text(plans: Sequence[SpotPlan], share: float, hours_between_losses: float, prices: Prices | None) -> str:
    """A table for each phase: what is expected with the recipe's time between two saves, and with the best one."""
    priced = prices is not None and prices.device_hour >= 0
    currency = prices.currency if prices else ""
    parts = [
        f"\non hosts that are taken away after {hours_between_losses:g} h in the mean, for {share:.0%} of the price "
        "(expected values, Daly's formulas):"
    ]
    for phase in dict.fromkeys(plan.phase for plan in plans):
        rows = [(*_HEADS, *([f"cost {currency}".strip(), "usual cost"] if priced else []))]
        for plan in plans:
            if plan.phase == phase:
                cells = [str(plan.world_size), str(plan.hosts), _number(plan.losses), _days(plan.days)]
                cells += [_number(plan.device_hours), duration(plan.interval_s), duration(plan.daly_s)]
                cells += [str(plan.best_steps), _days(plan.best_days)]
                costs = [plan.price, plan.usual_price] if priced else []
                rows.append((*cells, *(_number(cost or 0.0) for cost in costs)))
        parts += [f"phase {phase}:", lines(rows, shutil.get_terminal_size().columns)]
    if len({plan.phase for plan in plans}) > 1:
        parts.append("all phases:")
        for ranks in dict.fromkeys(plan.world_size for plan in plans):
            of_ranks = [plan for plan in plans if plan.world_size == ranks]
            total = f"{ranks:>6} rank(s): {_days(sum(plan.days for plan in of_ranks))} days, "
            total += f"{_number(sum(plan.device_hours for plan in of_ranks))} device-hours"
            if priced:
                total += f", {_number(sum(plan.price or 0 for plan in of_ranks))} {currency}".rstrip()
            parts.append(total)
    best = max((plan for plan in plans if plan.world_size == plans[-1].world_size), key=lambda plan: plan.days)
    if _days(best.best_days) == _NEVER:
        return "\n".join(
            [*parts, f"{best.world_size} rank(s) lose hosts too often to get to the end, however they save"]
        )
    parts.append(
        f"for {best.world_size} rank(s) in phase {best.phase}, the longest: --set execution.checkpoint_steps="
        f"{best.best_steps} ({duration(best.daly_s)} by Daly, {duration(best.young_s)} by Young)"
    )
    return "\n".join(parts)


_NEVER = "never"


def _days(number: float) -> str:
    return three_figures(number) if number < 1e6 else _NEVER


def _number(number: float) -> str:
    return f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}" if number < 1e12 else "-"


PARTS = {  # of a step, from the bottom: heading and colour
    "forward_backward_s": ("forward and backward", "#4c78a8"),
    "accumulation_s": ("accumulation", "#72b7b2"),
    "update_s": ("update", "#54a24b"),
    "waiting_s": ("waiting for the slowest", "#eeca3b"),
    "exposed_s": ("exposed communication", "#e45756"),
    "exposed_input_s": ("exposed input", "#b279a2"),
}
_WIDTH, _BAR, _GAP, _LEFT, _PANEL, _HEIGHT = 860, 44, 16, 40, 300, 180


def plan_svg(title: str, plans: Sequence[PhasePlan]) -> str:
    """An SVG document: a panel for each phase, in it a bar for each number of ranks, made of the parts of a step."""
    phases = sorted({plan.phase for plan in plans})
    most = max(sum(plan.phase == phase for plan in plans) for phase in phases)
    width = max(_WIDTH, _LEFT + most * (_BAR + _GAP) + _GAP)
    parts = [_text(_LEFT, 24, title, 16)]
    x = _LEFT
    for heading, colour in PARTS.values():
        parts += [f'<rect x="{x}" y="36" width="10" height="10" fill="{colour}"/>', _text(x + 14, 45, heading, 12)]
        x += 40 + 7 * len(heading)
    for row, phase in enumerate(phases):
        top = 70 + row * _PANEL
        parts.append(_text(_LEFT, top + 12, f"phase {phase}: shares of a step; efficiency and days above", 13))
        for i, plan in enumerate(plan for plan in plans if plan.phase == phase):
            x, y = _LEFT + i * (_BAR + _GAP), top + 60 + _HEIGHT
            for name, (_, colour) in PARTS.items():
                height = _HEIGHT * getattr(plan, name) / plan.step_s
                y -= height
                parts.append(f'<rect x="{x}" y="{y:.2f}" width="{_BAR}" height="{height:.2f}" fill="{colour}"/>')
            middle = x + _BAR / 2
            parts += [
                _text(middle, top + 40, f"{plan.efficiency:.0%}", 12, "middle"),
                _text(middle, top + 54, f"{plan.days:.3g} d", 11, "middle"),
                _text(middle, top + 76 + _HEIGHT, str(plan.world_size), 12, "middle"),
            ]
    height = 70 + len(phases) * _PANEL
    parts.append(_text(_LEFT, height - 8, "ranks", 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
