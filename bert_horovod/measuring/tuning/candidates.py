"""Candidates for tuning: lines of [execution] settings; those of a line differ from the given settings in one thing.

The search walks a line from the nearest value to the one that is furthest away, until a candidate is worse.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert_horovod.costs.choices import RECOMPUTE
from bert_horovod.measuring.tuning.trials import Settings
from bert_horovod.recipe.sections import Recipe

Line = list[Settings]

XLA = ("elementwise", "layers", "off")
BUCKET_BYTES = ("auto", 4 << 20, 16 << 20, 64 << 20)
LEAST_WAIT = 0.01  # share of a step: if ranks wait less than this for sums, settings of communication are not tried


@dataclass(frozen=True)
class Machine:
    """The cores and GPUs of one host of the run, and the ranks that share them."""

    cores: int  # logical cores that this process may use
    physical_cores: int  # physical cores among these; fewer if a core runs two threads
    world_size: int = 1  # ranks
    local_size: int = 1  # of them on this host
    capability: tuple[int, int] | None = None  # compute capability of the GPUs; None: the host has none

    def threads(self, setting: int) -> int:
        """A rank's threads if execution.threads is `setting`; see runtime.devices.use_devices."""
        return setting or max(1, self.cores // self.local_size)


def first_settings(recipe: Recipe, machine: Machine) -> Settings:
    """The settings that tuning may change, with the recipe's values."""
    execution = recipe.execution
    names = ["micro_batch", "xla", "recompute"]
    names += [] if machine.capability else ["threads"]
    if machine.world_size > 1:
        names += ["bucket_bytes", "reduction"]
    return {name: getattr(execution, name) for name in names}


def resolved(settings: Mapping[str, Any], machine: Machine) -> Settings:
    """The settings with `auto` and 0 replaced by their values on this machine, so that equal settings compare equal."""
    values = dict(settings)
    if values["xla"] == "auto":
        values["xla"] = "layers" if machine.capability else "elementwise"
    if "threads" in values:
        values["threads"] = machine.threads(values["threads"])
    if values.get("bucket_bytes", "auto") != "auto" and values["reduction"] == "auto":
        values["reduction"] = "ring"
    return values


def micro_batches(recipe: Recipe, phase: int, world_size: int) -> list[int]:
    """Micro-batches, ascending, that divide a rank's share of the global batch with little padding: all, a half, ..."""
    share, sizes = -(-recipe.phase[phase].global_batch // world_size), []
    while not sizes or sizes[-1] > 1:
        sizes.append(-(-share // (1 << len(sizes))))
    return sorted(sizes)


class Candidates:
    """The lines of candidates for a recipe on a machine.

    Args:
        recipe: the recipe before tuning.
        phase: number of the phase that is measured.
        machine: a host of the run.
        fits: whether settings may fit into memory.
    """

    def __init__(self, recipe: Recipe, phase: int, machine: Machine, fits: Callable[[Settings], bool]) -> None:
        self._recipe, self._machine, self._fits = recipe, machine, fits
        self._micro_batches = micro_batches(recipe, phase, machine.world_size)

    def smaller(self, at: Settings) -> Line:
        """If `at` does not fit: smaller micro-batches, the largest first; last, one row with recompute = "layer"."""
        rows = [rows for rows in reversed(self._micro_batches) if rows < at["micro_batch"]]
        return [at | {"micro_batch": count} for count in rows] + [at | {"micro_batch": 1, "recompute": "layer"}]

    def lines(self, at: Settings, wait_share: float) -> Iterator[Callable[[Settings], list[Line]]]:
        """Yields functions; each takes the best settings so far and returns the lines that begin there.

        Args:
            at: the best settings so far.
            wait_share: the share of a step that ranks waited for sums with these settings.
        """
        yield self._xla
        yield self._rows
        yield self._recompute
        if "threads" in at:
            yield self._threads
        if self._machine.world_size > 1 and wait_share >= LEAST_WAIT:
            yield self._buckets

    def _xla(self, at: Settings) -> list[Line]:
        return [[at | {"xla": xla}] for xla in XLA if xla != resolved(at, self._machine)["xla"]]

    def _rows(self, at: Settings) -> list[Line]:
        rows, low = at["micro_batch"], [count for count in self._micro_batches if count < at["micro_batch"]]
        high = [count for count in self._micro_batches if count > rows]
        return [[at | {"micro_batch": count} for count in line] for line in (low[::-1], high)]

    def _recompute(self, at: Settings) -> list[Line]:
        """Other values of recompute, with this micro-batch, and with the largest that fits only with recomputation."""
        lines = []
        for recompute in RECOMPUTE:
            if recompute != at["recompute"]:
                changed = at | {"recompute": recompute}
                lines.append([changed])
                for rows in reversed(self._micro_batches):
                    larger = changed | {"micro_batch": rows}
                    if rows > at["micro_batch"] and self._fits(larger):
                        if not self._fits(at | {"micro_batch": rows}):
                            lines.append([larger])
                        break
        return lines

    def _threads(self, at: Settings) -> list[Line]:
        machine, now = self._machine, self._machine.threads(at["threads"])
        all_of_them = machine.threads(0)
        wished = [all_of_them, max(1, machine.physical_cores // machine.local_size)]
        wished += [all_of_them - 1] if all_of_them >= 4 else []  # a core stays free for Horovod and for making rows
        return [
            [at | {"threads": 0 if count == all_of_them else count}] for count in dict.fromkeys(wished) if count != now
        ]

    def _buckets(self, at: Settings) -> list[Line]:
        narrow = self._recipe.numerics.wire == "float16"
        sizes_and_ways = [("auto", "auto")]
        for size in BUCKET_BYTES[1:]:
            sizes_and_ways += [(size, way) for way in (("ring", "two_step") if narrow else ("auto",))]
        now = resolved(at, self._machine)
        changed = [at | {"bucket_bytes": size, "reduction": way} for size, way in sizes_and_ways]
        return [[candidate] for candidate in changed if resolved(candidate, self._machine) != now]
