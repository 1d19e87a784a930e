"""A cluster as its user describes it, in TOML: hosts, devices, what joins them, what they cost.

run/clusters/ has examples. What a file does not say of a known device is its data sheet's (costs/gpus.py); prices and
power are always the user's.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert_horovod.costs.gpus import TERA, gpu_memory, gpu_peak, known_gpus
from bert_horovod.costs.planner import HOP_LATENCY_S, LINK_SHARE, PRODUCT_SHARE, SPREAD, Device, Network
from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import parse_toml, refuse_unknown, section_from_table, setting
from bert_horovod.storage.reading import read_text

_PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)(b|bit|B)/s")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])(i?)B")


@dataclass(frozen=True)
class Hosts:
    """`[hosts]`."""

    count: int = setting(1, minimum=1, maximum=1 << 20)
    devices: int = setting(1, minimum=1, maximum=1 << 10)  # of a host, a rank each


@dataclass(frozen=True)
class DeviceSheet:
    """`[device]`."""

    name: str = setting("")  # of a known GPU, as in "V100 SXM2 32GB"; or a name for what follows
    tflops: float = setting(0.0, minimum=0)  # peak of matrix products in the recipe's precision; 0: the data sheet's
    product_share: float = setting(PRODUCT_SHARE, above=0, maximum=1)  # of it, what forward and backward reach
    memory: str = setting("")  # as in 16GiB; "": the data sheet's
    memory_rate: str = setting("")  # as in 900GB/s; "": the data sheet's
    spread: float = setting(SPREAD, minimum=0, below=1)  # standard deviation of devices' speeds, over their mean


@dataclass(frozen=True)
class LinkSheet:
    """`[between]`: a host's link to the others, and `[inside]`: what joins a host's devices; in each direction."""

    rate: str = setting("")  # as in 10Gb/s (bits) or 12GB/s (bytes)
    share: float = setting(LINK_SHARE, above=0, maximum=1)  # of the rate, what all-reduces reach
    latency_ms: float = setting(1e3 * HOP_LATENCY_S, minimum=0)  # of a message from rank to rank


@dataclass(frozen=True)
class Prices:
    """`[costs]`; what is not said is not computed."""

    device_hour: float = setting(-1.0, minimum=-1)  # -1: not known
    currency: str = setting("")
    device_w: float = setting(-1.0, minimum=-1)  # under load, its share of the host included; -1: not known
    kwh: float = setting(-1.0, minimum=-1)  # price of one; -1: it is in device_hour


class Bill(NamedTuple):
    """What training takes."""

    device_hours: float
    price: float | None  # in the cluster's currency
    kwh: float | None


@dataclass(frozen=True)
class Cluster:
    """A cluster, checked."""

    hosts: Hosts
    device: DeviceSheet
    between: LinkSheet
    inside: LinkSheet
    costs: Prices
    path: str = "the cluster file"

    @property
    def ranks(self) -> int:
        """All devices."""
        return self.hosts.count * self.hosts.devices

    @property
    def network(self) -> Network:
        """What joins them."""
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
        """What a rank computes with; raises UserError where file and data sheets do not say it."""
        return device_of(self.device, f"{self.path}: device.", precision)

    def bill(self, days: float, ranks: int) -> Bill:
        """What so many days on so many ranks take."""
        hours, costs = 24 * days * ranks, self.costs
        kwh = hours * costs.device_w / 1000 if costs.device_w >= 0 else None
        price = None
        if costs.device_hour >= 0:
            price = hours * costs.device_hour + (kwh * costs.kwh if kwh is not None and costs.kwh >= 0 else 0.0)
        return Bill(hours, price, kwh)


_SECTIONS = {"hosts": Hosts, "device": DeviceSheet, "between": LinkSheet, "inside": LinkSheet, "costs": Prices}


def read_cluster(path: Path) -> Cluster:
    """A cluster file.

    Raises:
        UserError: it cannot be read, or a setting is not what it should be or is missing; the message names it.
    """
    try:
        table = parse_toml(read_text(path, "the cluster file"))
    except ValueError as error:
        raise UserError(f"{path} is no TOML: {error}") from error
    try:
        refuse_unknown(table, _SECTIONS, "")
        for name in table:
            if not isinstance(table[name], dict):
                raise UserError(f"{name} = {table[name]!r:.50}: expected a section [{name}]")
        found = Cluster(
            **{name: section_from_table(kind, table.get(name, {}), name) for name, kind in _SECTIONS.items()},
            path=str(path),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not found.device.name and not found.device.tflops:
        raise UserError(f'{path}: which device? Add under [device] a line as name = "A100 80GB" or tflops = 125.0')
    if found.hosts.count > 1 and not found.between.rate:
        raise UserError(
            f'{path}: {found.hosts.count} hosts, and no link: add under [between] a line as rate = "25Gb/s"'
        )
    if found.hosts.devices > 1 and not found.inside.rate:
        raise UserError(
            f"{path}: {found.hosts.devices} devices a host, and no link: add under [inside] a line as "
            'rate = "12GB/s" (PCIe 3) or rate = "150GB/s" (NVLink)'
        )
    _ = found.network  # whose rates are checked so
    return found


def device_of(sheet: DeviceSheet, where: str, precision: str, called: str = "name") -> Device:
    """A device by its data sheet, and by what is said in its place.

    Args:
        sheet: what is said.
        where: what settings' names in errors begin with.
        precision: the recipe's.
        called: what the sheet's name is called in errors.

    Raises:
        UserError: no data sheet is known, or the device does not accelerate the precision.
    """
    peak = sheet.tflops * TERA if sheet.tflops else _peak(sheet.name, f"{where}{called}", precision)
    memory = gpu_memory(sheet.name)
    size, rate = (memory.gib * 2**30, memory.gb_per_s * 1e9) if memory else (None, None)
    if sheet.memory:
        size = parse_size(sheet.memory, f"{where}memory")
    if sheet.memory_rate:
        rate = parse_rate(sheet.memory_rate, f"{where}memory_rate")
    return Device(sheet.name or f"of {sheet.tflops:g} TFLOP/s", peak, sheet.product_share, size, rate, sheet.spread)


def parse_rate(text: str, where: str) -> float:
    """Bytes a second of a text like 10Gb/s (bits) or 900GB/s (bytes); raises UserError that begins with `where`."""
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{where} {text}: expected a rate above 0 as in 10Gb/s (bits) or 900GB/s (bytes)")
    return float(match[1]) * _PREFIXES[match[2]] / (1 if match[3] == "B" else 8)


def parse_size(text: str, where: str) -> float:
    """Bytes of a text like 16GiB or 16GB; raises UserError that begins with `where`."""
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{where} {text}: expected a size above 0 as in 16GiB or 16GB")
    return float(match[1]) * (2 ** {"M": 20, "G": 30}[match[2]] if match[3] else _PREFIXES[match[2]])


def _peak(name: str, where: str, precision: str) -> float:
    """The data sheet's, float32 as TF32."""
    peak = gpu_peak(name, precision, tensor_float_32=True)
    if peak is not None:
        return peak
    if gpu_peak(name, "float32", tensor_float_32=True) is not None:
        raise UserError(
            f"{where} {name} does not accelerate numerics.precision = {precision}: --set numerics.precision=float16, "
            "or say what it reaches with tflops"
        )
    raise UserError(
        f"{where} {name}: not known; known are {', '.join(known_gpus())}. "
        "For another device give the peak of its matrix products, as in tflops 125, and its memory"
    )
