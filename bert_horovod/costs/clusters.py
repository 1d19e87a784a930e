"""A cluster described by its user in TOML: hosts, devices, links between them, costs.

run/clusters/ has examples. Values that a file leaves out of a known device are from its data sheet (costs/gpus.py);
prices and power always come from the user.

How long a training takes on machines that are taken away, and how often it should save. J. T. Daly, A higher order
estimate of the optimum checkpoint interval for restart dumps (2006); J. W. Young, A first order approximation to the
optimum checkpoint interval (1974). Losses come at random, independently of each other, also while a run saves or starts
again. All times are in seconds.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from bert_horovod.costs.gpus import GPUS, TERA, allocatable_bytes, compute_capability, data_sheet, gpu_peak
from bert_horovod.costs.planner import HOP_LATENCY_S, LINK_SHARE, SPREAD, Device, Network, PhasePlan, usual_share
from bert_horovod.costs.prices import Prices, bill
from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import read_toml, sections_from_table, setting
from bert_horovod.recipe.sections import Recipe

_PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)(b|bit|B)/s")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])(i?)B")


# Advice in errors about a device without a data sheet: for a file, and for a command line.
_LINES = {
    "name": 'add under [device] lines as tflops = 125.0 and memory = "16GiB"',
    "device": "describe it in a cluster file, by tflops and memory under [device]: plan --cluster FILE",
}


@dataclass(frozen=True)
class HostsSheet:
    """`[hosts]`."""

    count: int = setting(1, minimum=1, maximum=1 << 20)
    devices: int = setting(1, minimum=1, maximum=1 << 10)  # per host; one rank each


@dataclass(frozen=True)
class DeviceSheet:
    """`[device]`."""

    name: str = setting("")  # of a known GPU, as in "V100 SXM2 32GB"; or any name for the values below
    tflops: float = setting(0.0, minimum=0)  # peak of matrix products in the recipe's precision; 0: the data sheet's
    product_share: float = setting(0.0, minimum=0, maximum=1)  # share of tflops that is reached; 0: known of such GPUs
    memory: str = setting("")  # as in 16GiB; "": the data sheet's
    memory_rate: str = setting("")  # as in 900GB/s; "": the data sheet's
    spread: float = setting(SPREAD, minimum=0, below=1)  # standard deviation of devices' speeds, over their mean


@dataclass(frozen=True)
class LinkSheet:
    """`[between]`: a host's link to other hosts; `[inside]`: the link between a host's devices; in each direction.

    A ring enters a host through one network card: if a host has several, give `between` the rate of one, unless a
    higher rate was measured.
    """

    rate: str = setting("")  # as in 10Gb/s (bits) or 12GB/s (bytes)
    share: float = setting(LINK_SHARE, above=0, maximum=1)  # share of the rate that all-reduces reach
    latency_ms: float = setting(1e3 * HOP_LATENCY_S, minimum=0)  # of a message from rank to rank


@dataclass(frozen=True)
class Cluster:
    """A cluster, checked."""

    hosts: HostsSheet
    device: DeviceSheet
    between: LinkSheet
    inside: LinkSheet
    costs: Prices
    path: str = "the cluster file"

    @property
    def ranks(self) -> int:
        """The number of all devices."""
        return self.hosts.count * self.hosts.devices

    @property
    def network(self) -> Network:
        """The links between hosts and inside a host."""
        between, inside = self.between, self.inside
        return Network(
            parse_rate(between.rate, f"{self.path}: between.rate =") if between.rate else math.inf,
            between.share,
            1e-3 * between.latency_ms,
            self.hosts.devices,
            inside.share * parse_rate(inside.rate, f"{self.path}: inside.rate =") if inside.rate else math.inf,
            1e-3 * inside.latency_ms if inside.rate else 0.0,
        )

    def rank_device(self, precision: str) -> Device:
        """The device of a rank; raises UserError if neither file nor data sheets have its values."""
        return device_of(self.device, f"{self.path}: device.", precision)


_SECTIONS = {"hosts": HostsSheet, "device": DeviceSheet, "between": LinkSheet, "inside": LinkSheet, "costs": Prices}


def read_cluster(path: Path) -> Cluster:
    """Read and check a cluster file.

    Raises UserError if the file cannot be read, or a setting is wrong or missing; the message names it.
    """
    table = read_toml(path, "the cluster file")
    try:
        cluster = Cluster(**sections_from_table(_SECTIONS, {name: {} for name in _SECTIONS} | table), path=str(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not cluster.device.name and not cluster.device.tflops:
        raise UserError(f'{path}: which device? Add under [device] a line as name = "A100 80GB" or tflops = 125.0')
    if cluster.hosts.count > 1 and not cluster.between.rate:
        raise UserError(
            f'{path}: {cluster.hosts.count} hosts, and no link: add under [between] a line as rate = "25Gb/s"'
        )
    if cluster.hosts.devices > 1 and not cluster.inside.rate:
        raise UserError(
            f"{path}: {cluster.hosts.devices} devices a host, and no link: add under [inside] a line as "
            'rate = "12GB/s" (PCIe 3) or rate = "150GB/s" (NVLink)'
        )
    costs = cluster.costs
    if costs.kwh >= 0 and costs.device_w < 0:
        raise UserError(f"{path}: costs.kwh needs the power: add under [costs] a line as device_w = 350.0")
    if costs.device_hour < 0 and (costs.kwh >= 0 or costs.currency):
        raise UserError(f"{path}: no price: add under [costs] a line as device_hour = 1.5 (0.0 if only energy is paid)")
    _ = cluster.network  # checks the rates
    return cluster


def device_of(sheet: DeviceSheet, where: str, precision: str, called: str = "name") -> Device:
    """A device from its data sheet; values that the user gives replace those of the data sheet.

    `where`: prefix of the settings' names in errors; `called`: the setting of the device's name, "name" in a file,
    "device" on a command line. Raises UserError if no data sheet is known, or the device does not accelerate the
    precision.
    """
    peak = sheet.tflops * TERA if sheet.tflops else _peak(sheet.name, f"{where}{called}", precision, _LINES[called])
    gpu = data_sheet(sheet.name)
    size, rate = (gpu.memory.gib * 2**30, gpu.memory.gb_per_s * 1e9) if gpu else (None, None)
    if sheet.memory:
        size = parse_size(sheet.memory, f"{where}memory")
    if sheet.memory_rate:
        rate = parse_rate(sheet.memory_rate, f"{where}memory_rate")
    name = sheet.name or f"of {sheet.tflops:g} TFLOP/s"
    allocatable = None if size is None else allocatable_bytes(size, name)
    capability = compute_capability(name) or Device.capability
    share = sheet.product_share or usual_share(gpu, capability)
    return Device(name, peak, share, size, rate, sheet.spread, allocatable, capability, gpu.name if gpu else "")


def parse_rate(text: str, where: str) -> float:
    """Bytes a second of a text like 10Gb/s (bits) or 900GB/s (bytes); `where` starts the message of its UserError."""
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{where} {text}: expected a rate above 0 as in 10Gb/s (bits) or 900GB/s (bytes)")
    return float(match[1]) * _PREFIXES[match[2]] / (1 if match[3] == "B" else 8)


def parse_size(text: str, where: str) -> float:
    """Bytes of a text like 16GiB or 16GB; `where` starts the message of its UserError."""
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{where} {text}: expected a size above 0 as in 16GiB or 16GB")
    return float(match[1]) * (2 ** {"M": 20, "G": 30}[match[2]] if match[3] else _PREFIXES[match[2]])


def _peak(name: str, where: str, precision: str, lines: str) -> float:
    """The peak from the data sheet, float32 as TF32; `lines`: advice in the error on how to give the peak."""
    peak = gpu_peak(name, precision, tensor_float_32=True)
    if peak is not None:
        return peak
    if gpu_peak(name, "float32", tensor_float_32=True) is not None:
        raise UserError(
            f"{where} {name} does not accelerate numerics.precision = {precision}: --set numerics.precision=float16, "
            f"or for what it reaches {lines}"
        )
    raise UserError(
        f"{where} {name}: not known; known are {', '.join(gpu.name for gpu in GPUS)}. For another device {lines}"
    )


@dataclass(frozen=True)
class Losses:
    """What machines that are taken away do to a run."""

    mean_s: float  # between two losses, of any machine of the run
    save_s: float  # training waits so long for a save
    restart_s: float  # from a loss to the next step, with the wait for another machine

    def expected_s(self, work_s: float, interval_s: float) -> float:
        """Expected time of a training of `work_s` that saves after every `interval_s` of it (Daly); may be inf."""
        mean = self.mean_s
        try:
            grown = math.exp(self.restart_s / mean) * math.expm1((interval_s + self.save_s) / mean)
        except OverflowError:
            return math.inf
        return mean * grown * work_s / interval_s

    @property
    def young_s(self) -> float:
        """The best time between two saves, if saves are short beside `mean_s`."""
        return math.sqrt(2 * self.save_s * self.mean_s)

    @property
    def daly_s(self) -> float:
        """The same, to a higher order."""
        ratio = self.save_s / (2 * self.mean_s)
        if ratio >= 1:
            return self.mean_s
        return self.young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save_s


@dataclass(frozen=True)
class SpotPlan:
    """A phase on machines that are taken away, on a number of ranks."""

    phase: int
    world_size: int
    hosts: int
    losses: float  # expected
    days: float  # expected
    device_hours: float
    price: float | None  # in the cluster's currency
    usual_price: float | None  # of the phase on machines that stay
    interval_s: float  # between two saves, of execution.checkpoint_steps
    best_days: float  # with best_steps
    best_steps: int  # execution.checkpoint_steps by Daly's formula, of those that the exchange allows
    young_s: float
    daly_s: float


def spot_plan(
    recipe: Recipe, plan: PhasePlan, hosts: int, losses: Losses, prices: Prices | None, share: float
) -> SpotPlan:
    """A phase's plan on `hosts` hosts that are taken away, for a share of the price of hosts that stay."""
    work_s, phase_steps = 86400 * plan.days, recipe.phase[plan.phase].steps
    steps = min(recipe.execution.checkpoint_steps, phase_steps)
    every = recipe.exchange.agreement  # a run saves only where its ranks agree
    best_steps = every * max(1, round(min(losses.daly_s / plan.step_s, phase_steps) / every))
    days = losses.expected_s(work_s, steps * plan.step_s) / 86400
    costs, usual = bill(prices, days, plan.world_size), bill(prices, plan.days, plan.world_size)
    return SpotPlan(
        phase=plan.phase,
        world_size=plan.world_size,
        hosts=hosts,
        losses=86400 * days / losses.mean_s,
        days=days,
        device_hours=costs.device_hours,
        price=None if costs.price is None else share * costs.price,
        usual_price=usual.price,
        interval_s=steps * plan.step_s,
        best_days=losses.expected_s(work_s, best_steps * plan.step_s) / 86400,
        best_steps=best_steps,
        young_s=losses.young_s,
        daly_s=losses.daly_s,
    )
