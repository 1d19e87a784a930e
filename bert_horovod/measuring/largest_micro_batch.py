"""The largest micro-batch that fits into a limit of memory, found by running steps in processes of their own.

A process's peak memory never falls, so each try runs in a new process. The process runs this module as a program: it
reads the try from standard input as JSON and writes the peak to standard output.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.allocator import keep_freed_memory
from bert_horovod.runtime.children import end_with_parent, python_settings

STEPS = 2  # optimizer steps; the first creates slots and accumulators, the second runs beside them
MARGIN = 1.1  # on a CPU a try is ended when its resident memory exceeds the limit times this
_WATCH_S = 0.02
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{unit}": base ** (i + 1) for i, letter in enumerate("KMGT") for unit, base in (("iB", 1024), ("B", 1000))
}


@dataclasses.dataclass(frozen=True)
class Try:
    """One measured phase at one micro-batch."""

    phase: int
    micro_batch: int  # rows
    micro_batches: int  # of a rank's optimizer step, at the recipe's global batch
    peak_bytes: int  # measured; if the try was ended, the most seen until then
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


def gibibytes(size: float) -> str:
    """A size for people."""
    return f"{size / 2**30:.2f} GiB"


def largest_micro_batch(recipe: Recipe, limit_bytes: int, world_size: int, tell: Callable[[Try], None]) -> int:
    """The largest execution.micro_batch with which every phase stays within the limit; calls `tell` after each try.

    Doubles from 1, then bisects, on the phase with the longest rows; the other phases must fit too. The result is at
    most a rank's share of the smallest global batch, because more would add rows of padding.

    Raises:
        UserError: not even one row fits, or the ranks cannot share a global batch.
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

    On a CPU the process is ended as soon as it holds more than MARGIN times the limit. Raises RuntimeError, with the
    end of the process's error output, if it fails for another reason than lack of memory.
    """
    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.synthetic import row_slots
    from bert_horovod.model.gpu_kernels.choice import capability

    recipe = dataclasses.replace(recipe, execution=dataclasses.replace(recipe.execution, micro_batch=micro_batch))
    slots, on = row_slots(recipe, recipe.phase[phase]), capability()
    derived = derive(recipe, recipe.phase[phase], world_size, slots, on)
    bound = None if on else int(MARGIN * limit_bytes)
    work = {"recipe": recipe_to_table(recipe), "phase": phase, "world_size": world_size}
    peak, ended = _run_within(json.dumps(work), bound)
    fits = not ended and peak <= limit_bytes
    return Try(phase, micro_batch, derived.micro_batches, peak, ended, fits, derived.memory_bytes)


def _run_within(work: str, bound: int | None) -> tuple[int, bool]:
    """The peak in bytes of a child process, and whether it was ended for lack of memory."""
    with (
        tempfile.TemporaryFile("w+") as input_file,
        tempfile.TemporaryFile("w+") as output_file,
        tempfile.TemporaryFile("w+") as log,
    ):
        input_file.write(work)
        input_file.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "bert_horovod.measuring.largest_micro_batch"],
            stdin=input_file,
            stdout=output_file,
            stderr=log,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | python_settings(),
        ) as child:
            try:
                reached, over = _watch(child, bound)
            finally:
                child.kill()
        output_file.seek(0)
        log.seek(0)
        output, errors = output_file.read(), log.read()
    if over or child.returncode == -signal.SIGKILL or "bad_alloc" in errors:  # or the system's memory was full
        return reached, True
    if child.returncode:
        raise RuntimeError(f"a step failed with exit code {child.returncode}:\n{errors[-4000:]}")
    measured = json.loads(output.splitlines()[-1])
    return measured["peak_bytes"], measured["exhausted"]


def _watch(child: subprocess.Popen, bound: int | None) -> tuple[int, bool]:
    """Wait until the child ends; kill it above `bound`. Returns its most resident bytes and whether it was killed."""
    reached = 1
    while child.poll() is None:
        try:
            pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            pages = 0
        reached = max(reached, pages * os.sysconf("SC_PAGE_SIZE"))
        if bound is not None and reached > bound:
            child.kill()
            return reached, True
        time.sleep(_WATCH_S)
    return reached, False


def _child() -> None:
    work = json.loads(sys.stdin.read())
    recipe = recipe_from_table(work["recipe"]).of_phase(work["phase"])

    from bert_horovod.costs.derived import derive
    from bert_horovod.measuring.synthetic import LoneRank, phase_batch, synthetic_step
    from bert_horovod.runtime.devices import peak_memory_bytes, use_devices

    use_devices(0, 1, recipe.execution.threads)
    (phase,) = recipe.phase
    micro_batches = min(2, derive(recipe, phase, work["world_size"]).micro_batches)  # more than 2 need no more memory
    exhausted = False
    try:
        step = synthetic_step(recipe, phase_batch(recipe, phase), micro_batches, LoneRank(work["world_size"]))
        for _ in range(STEPS):
            step.run()
    except (tf.errors.ResourceExhaustedError, MemoryError):
        exhausted = True
    print(json.dumps({"peak_bytes": peak_memory_bytes(), "exhausted": exhausted}))


if __name__ == "__main__":
    end_with_parent(os.getppid())
    keep_freed_memory()  # as a rank does
    _child()
