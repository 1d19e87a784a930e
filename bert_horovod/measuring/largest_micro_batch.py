"""The largest micro-batch that fits into a limit of memory, found by running steps in processes of their own.

A process's peak memory never falls, so each try is a `bench step` in a new process.
"""

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from bert_horovod.batches.text.mask_rates import mask_rate
from bert_horovod.errors import UserError
from bert_horovod.measuring.bench_child import OutOfMemory, run_bench
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Objective
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.wording import gibibytes

STEPS = 2  # optimizer steps; the first creates slots and accumulators, the second runs beside them
MARGIN = 1.1  # on a CPU a try is ended when its resident memory exceeds the limit times this
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{unit}": base ** (i + 1) for i, letter in enumerate("KMGT") for unit, base in (("iB", 1024), ("B", 1000))
}


@dataclasses.dataclass(frozen=True)
class Try:
    """One measured phase at one micro-batch."""

    phase: int
    micro_batch: int  # rows
    micro_batches: int  # of a rank's optimizer step, at the recipe's global batch
    peak_bytes: int  # measured; if the try was ended, the memory above which it was
    ended: bool  # whether the try was ended before its steps were done, for lack of memory
    fits: bool
    estimate_bytes: int  # the program's own estimate, costs.derived

    @property
    def ratio(self) -> float:
        """Measured over estimated."""
        return self.peak_bytes / self.estimate_bytes


def parse_bytes(text: str, flag: str = "--limit") -> int:
    """Bytes of a size such as 16GiB, 900MiB, 24GB or 12e9; raises UserError."""
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    try:
        size = int(float(match[1]) * _UNITS[match[2]])
    except (TypeError, KeyError, ValueError, OverflowError):
        size = 0
    if size < 1:
        raise UserError(f"{flag} {text}: expected a size in bytes, such as 16GiB, 900MiB, 24GB or 12e9")
    return size


def largest_micro_batch(recipe: Recipe, limit_bytes: int, world_size: int, tell: Callable[[Try], None]) -> int:
    """The largest execution.micro_batch with which every phase stays within the limit; calls `tell` after each try.

    Doubles from 1, then bisects, on the phase with the longest rows; the other phases must fit too. The result is at
    most a rank's share of the smallest global batch, because more would add rows of padding. Raises UserError if not
    even one row fits, or the ranks cannot share a global batch.
    """
    most = min(-(-phase.global_batch // world_size) for phase in recipe.phase)
    order = sorted(range(len(recipe.phase)), key=lambda i: -recipe.phase[i].sequence_length)
    tried: dict[tuple[int, int], Try] = {}

    def fits(phase: int, micro_batch: int) -> bool:
        if (phase, micro_batch) not in tried:
            tried[phase, micro_batch] = measure(recipe, phase, micro_batch, limit_bytes, world_size)
            tell(tried[phase, micro_batch])
        return tried[phase, micro_batch].fits

    largest_so_far, first = most, 1
    while True:
        for phase in order:
            largest_so_far = largest(lambda rows, phase=phase: fits(phase, rows), largest_so_far, first)
            if not largest_so_far:
                raise UserError(_too_low(recipe, limit_bytes, tried[phase, 1]))
            first = largest_so_far
        if all(fits(phase, largest_so_far) for phase in order):
            return largest_so_far


def largest(fits: Callable[[int], bool], most: int, first: int = 1) -> int:
    """The largest number in [1, most] that fits, or 0: doubles from `first`, then bisects, exact to one in 32.

    A step of one micro-batch needs no gradient accumulators, so `most` may fit although a slightly smaller number does
    not. So `most` is tried too, if the smallest number that did not fit is above half of it.
    """
    low, high, number = 0, most + 1, min(first, most)
    while high - low > (1 if high > most else max(1, low // 32)):
        if fits(number):
            low = number
        else:
            high = number
        number = min(2 * low, most) if high > most else (low + high) // 2
    return most if high < most < 2 * high and fits(most) else low


def least_padding(recipe: Recipe, micro_batch: int, world_size: int) -> int:
    """The smallest micro-batch that makes no more micro-batches a step than this one: the same work, less padding."""
    shares = [-(-phase.global_batch // world_size) for phase in recipe.phase]
    return max(-(-share // -(-share // micro_batch)) for share in shares)


def _too_low(recipe: Recipe, limit_bytes: int, one_row: Try) -> str:
    length = recipe.phase[one_row.phase].sequence_length
    return (
        f"--limit {gibibytes(limit_bytes)}: not even one row of {length} positions fits (phase {one_row.phase}): "
        f"a step took {'more than ' if one_row.ended else ''}{gibibytes(one_row.peak_bytes)}; expected a higher "
        "limit, a smaller model, or numerics.precision and optimizer.name that need less"
    )


def measure(recipe: Recipe, phase: int, micro_batch: int, limit_bytes: int, world_size: int = 1) -> Try:
    """Run a phase's steps at this micro-batch in a process of its own.

    On a CPU the process is ended as soon as it holds more than MARGIN times the limit. Raises RunError, with the end of
    the process's error output, if it fails for another reason than lack of memory.
    """
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.configuration import row_slots
    from bert_horovod.model.gpu_kernels.choice import capability

    recipe = dataclasses.replace(recipe, execution=dataclasses.replace(recipe.execution, micro_batch=micro_batch))
    recipe = _masking_most(recipe, phase)
    slots, on = row_slots(recipe, recipe.phase[phase]), capability()
    derived = derive(recipe, recipe.phase[phase], world_size, slots, on)
    bound = int(MARGIN * limit_bytes)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "recipe.toml"
        path.write_text(recipe_to_toml(recipe), encoding="utf-8")
        words = ["bench", "step", "--json", "--recipe", str(path), "--phase", str(phase), "--communication", "off"]
        words += ["--world_size", str(world_size), "--warm_up", "1", "--steps", str(STEPS - 1), "--memory", str(bound)]
        try:
            peak, ended = run_bench(words)["memory_bytes"], False
        except OutOfMemory:
            peak, ended = bound, True
    fits = not ended and peak <= limit_bytes
    return Try(phase, micro_batch, derived.micro_batches, peak, ended, fits, derived.memory_bytes)


def _masking_most(recipe: Recipe, number: int) -> Recipe:
    """The recipe, whose phase `number` masks in all steps what it masks in the steps with most."""
    if not recipe.phase[number].masked_fraction_end:
        return recipe
    phases, rate = list(recipe.phase), max(mask_rate(recipe, recipe.phase[number]).stairs)
    phases[number] = dataclasses.replace(phases[number], masked_fraction=rate, masked_fraction_end=0.0)
    objective = recipe.objective
    if all(phase.masked_fraction for phase in phases):  # nothing reads it any more
        objective = dataclasses.replace(objective, masked_fraction=Objective().masked_fraction)
    return dataclasses.replace(recipe, objective=objective, phase=tuple(phases))
