"""A run's starts, with hosts and devices, and what they cost: sessions.json. Imports no TensorFlow.

A start that cannot be recorded is left out, so that it never ends a run.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from bert_horovod.costs.prices import Bill, Prices, bill
from bert_horovod.errors import ReportedError
from bert_horovod.runs.metrics_lines import Log, read_log
from bert_horovod.runs.status_files import SESSIONS, Sign, read_sign
from bert_horovod.storage.reading import Seconds, read_record
from bert_horovod.storage.writing import write_atomically

PROCESSOR = "CPU"
_SHOWN = 8  # hosts in a line


@dataclass(frozen=True)
class Devices:
    """The ranks of one kind on a host; `kind`: the GPU's name, or PROCESSOR."""

    host: str
    kind: str
    ranks: int


@dataclass(frozen=True)
class Session:
    """A run from a start to its end; `ended`: the last sign that it lived."""

    started: Seconds
    ended: Seconds
    devices: list[Devices] = field(default_factory=list)


@dataclass(frozen=True)
class Spent:
    """What a run has taken so far, over all its starts."""

    starts: int
    since_s: float  # seconds from the first start to the last sign of life
    effective_s: float  # seconds of the steps that count: not repeated later, without compilation, saving, evaluation
    device_hours: dict[str, float]  # by host and kind, as in "node1: A100 80GB"

    @property
    def effective(self) -> float:
        """The share of the time since the first start that went into steps that count."""
        return min(1.0, self.effective_s / self.since_s) if self.since_s > 0 else 0.0

    def bill(self, prices: Prices | None) -> Bill:
        """Device-hours, price and energy."""
        return bill(prices, sum(self.device_hours.values()) / 24, 1)

    def lines(self, prices: Prices | None = None) -> list[list[str]]:
        """Names and values for people; with a price, the cost."""
        costs = self.bill(prices)
        most = sorted(self.device_hours.items(), key=lambda item: -item[1])
        shown = [f"{place} {hours:,.2f}" for place, hours in most[:_SHOWN]]
        if others := most[_SHOWN:]:
            shown.append(f"{len(others)} others {sum(hours for _, hours in others):,.2f}")
        found = [
            ["effective training time", f"{self.effective:.1%} of {self.since_s / 3600:,.2f} h since the first start"],
            ["starts", str(self.starts)],
            ["device-hours so far", f"{costs.device_hours:,.2f} ({'; '.join(shown)})"],
        ]
        if prices is not None and costs.price is not None:
            found.append(["cost so far", f"{costs.price:,.2f} {prices.currency}".strip()])
        return found


def begin_session(
    output_dir: Path, started: float, everyone: Sequence[Sequence[str]], earlier: Sign | None = None
) -> None:
    """Record a start."""
    counts = Counter((host, kind) for host, kind in everyone)
    devices = [Devices(host, kind, ranks) for (host, kind), ranks in counts.items()]
    sessions = [*_read(output_dir, _log(output_dir), earlier), Session(started, started, devices)]
    with contextlib.suppress(ReportedError):
        write_atomically(output_dir / SESSIONS, json.dumps([asdict(session) for session in sessions], indent=1) + "\n")


def spent(output_dir: Path, now: float | None = None) -> Spent | None:
    """What the run has taken; None: its starts were not recorded. `now`: it lives; None: its last sign tells."""
    log = _log(output_dir)
    sessions = _read(output_dir, log, read_sign(output_dir))
    if not sessions:
        return None
    if now is not None:
        sessions[-1] = replace(sessions[-1], ended=max(now, sessions[-1].started))
    hours: Counter[str] = Counter()
    for session in sessions:
        for devices in session.devices:
            hours[f"{devices.host}: {devices.kind}"] += (session.ended - session.started) / 3600 * devices.ranks
    begins = [session.started for session in sessions]
    return Spent(len(sessions), sessions[-1].ended - begins[0], effective_seconds(log, begins), dict(hours))


def effective_seconds(log: Log, begins: Sequence[float]) -> float:
    """Seconds of the steps in a log of metrics, of which later starts have dropped the steps that they did again.

    Without saving and evaluation between steps, and without the compilation in the first line after each of `begins`
    (seconds since the epoch), whose steps are taken to be as long as the next line's.
    """
    steps = np.asarray(log.columns.get("step", ()))
    if not len(steps):
        return 0.0
    unknown = np.full(len(steps), np.nan)
    step_s = np.asarray(log.columns.get("step_s", unknown))
    pace = step_s - np.nan_to_num(np.asarray(log.columns.get("saving_s", unknown)))
    times = np.asarray(log.columns.get("time", unknown))
    for begin in begins:
        later = np.flatnonzero(times >= begin)
        if len(later) > 1:
            first, second = later[:2]
            pace[first] = min(pace[first], pace[second])
    return float(np.nansum(np.maximum(pace, 0.0) * np.diff(steps, prepend=0)))


def _log(output_dir: Path) -> Log:
    try:
        return read_log(output_dir / "metrics.jsonl")
    except OSError:
        return Log()


def _read(output_dir: Path, log: Log, sign: Sign | None) -> list[Session]:
    """The recorded starts; the last one lasts until its sign of life, or until its last line of metrics."""
    try:
        content = read_record(output_dir / SESSIONS, list[Session], inside=output_dir)
    except (OSError, ValueError):
        return []
    sessions = [
        Session(each["started"], each["ended"], [Devices(**devices) for devices in each.get("devices", [])])
        for each in content
    ]
    if sessions:
        last, ends = sessions[-1], [sessions[-1].ended, *log.columns.get("time", ())[-1:]]
        if sign is not None:
            ends.append(sign.time)
        known = [end for end in ends if last.started <= end <= time.time()]  # not by a clock that is ahead
        sessions[-1] = replace(last, ended=max(known, default=last.started))
    return sessions
