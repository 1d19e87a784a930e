"""The training step alone, on synthetic rows: no input pipeline, no other ranks.

Run as a program, it builds the step of one recipe and times it on request, as the scripts in lab/peers do:

    python -m bert_horovod.measuring.step_time '{"recipe": {...}}'

It reads numbers of steps, one a line, and answers each with a line: the steps' seconds, as a JSON list. With
"products": true it times the step's matrix products alone instead: a "step" is all products, one after another.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring.configuration import TRACED_STEPS, describe, step_flops
from bert_horovod.measuring.matrix import step_seconds
from bert_horovod.measuring.synthetic import synthetic_batch, synthetic_step
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.allocator import keep_freed_memory
from bert_horovod.runtime.devices import peak_memory_bytes, use_devices

WARM_UP = 3  # steps, the first of which compiles
_LARGEST_SEARCH = 16  # warm-up steps, at most, until float16's loss scale settles


class TimedStep:
    """The step of a recipe's first phase, one micro-batch an optimizer step.

    Args:
        recipe: its model, objective, optimizer, numerics, execution.xla and execution.micro_batch are measured.
        state: parameters and slots; fresh ones if None.
    """

    def __init__(self, recipe: Recipe, state: TrainingState | None = None) -> None:
        self.recipe = recipe
        length, slots = recipe.phase[0].sequence_length, full_row_slots(recipe, recipe.phase[0]).mean
        batch = synthetic_batch(recipe.model, recipe.execution.micro_batch, length, slots, 1)
        self._synthetic = synthetic_step(recipe, batch, state=state)
        self.state = self._synthetic.state
        self._forward_backward = tf.function(self._synthetic.step.forward_backward, autograph=False)

    def take(self, batch: dict[str, Any]) -> None:
        """Work on these rows from the next step on, in place of synthetic ones."""
        self._synthetic.take(batch)

    def run(self) -> float:
        """Do one optimizer step; returns its seconds."""
        started = time.perf_counter()
        self._synthetic.run()
        return time.perf_counter() - started

    def seconds(self, steps: int) -> list[float]:
        """Seconds of so many steps in a row; see SyntheticStep."""
        return self._synthetic.seconds(steps)

    def forward_backward(self) -> float:
        """The seconds of a micro-batch's forward and backward pass, up to its gradients."""
        inputs, batch = self._synthetic.inputs(), self._synthetic.batches[0]
        started = time.perf_counter()
        self._forward_backward(batch, tf.constant(0, tf.uint64), inputs)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - started

    def warm_up(self) -> float:
        """Compile, and run until times and float16's loss scale have settled; returns the first step's seconds."""
        first = self.run()
        for i in range(1, _LARGEST_SEARCH):
            if i >= WARM_UP and self.state.progress.skipped_in_a_row == 0:
                break
            self.run()
        return first


def measure(step: TimedStep, steps: int) -> dict[str, Any]:
    """Time `steps` optimizer steps, as many forward and backward passes, and their matrix products alone.

    The peak memory is that of the whole process: measure only one configuration in a process.
    """
    recipe = step.recipe
    first = step.warm_up()
    seconds = statistics.median(step.seconds(steps))
    memory = peak_memory_bytes()
    for _ in range(WARM_UP):
        step.forward_backward()
    forward_backward = statistics.median(step.forward_backward() for _ in range(steps))
    products = step_seconds(recipe)
    rows = recipe.execution.micro_batch
    return {
        "configuration": describe(recipe),
        "step_s": seconds,
        "rows_per_s": rows / seconds,
        "tokens_per_s": rows * recipe.phase[0].sequence_length / seconds,
        "flops_per_s": step_flops(recipe) / seconds,
        "products_s": products,
        "share": products / seconds,
        "forward_backward_s": forward_backward,
        "forward_backward_share": products / forward_backward,
        "memory_bytes": memory,
        "first_step_s": first,
    }


def trace(run: Callable[[], object], directory: Path) -> Path:
    """Write a trace of TRACED_STEPS calls below the directory, for TensorBoard; returns the file *.xplane.pb.

    Raises ReportedError if the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        traces_before = set(directory.rglob("*.xplane.pb"))
        tf.profiler.experimental.start(str(directory))
        for _ in range(TRACED_STEPS):
            run()
        tf.profiler.experimental.stop()
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"--profile {directory}: cannot write a trace there ({error}); name another directory"
        ) from error
    written = set(directory.rglob("*.xplane.pb")) - traces_before
    if not written:
        raise RunError(f"--profile {directory}: the profiler wrote no trace there; see that the disk has room")
    return max(written)


def main() -> None:
    """Answer requests for timed steps until standard input ends."""
    keep_freed_memory()  # as a rank does
    request = json.loads(sys.argv[1])
    recipe = recipe_from_table(request["recipe"])
    use_devices(0, 1, recipe.execution.threads)
    seconds = partial(_products_seconds, recipe) if request.get("products") else TimedStep(recipe).seconds
    for line in sys.stdin:
        print(json.dumps(seconds(int(line))), flush=True)


def _products_seconds(recipe: Recipe, times: int) -> list[float]:
    return [step_seconds(recipe) for _ in range(times)]


if __name__ == "__main__":
    main()
