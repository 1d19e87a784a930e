#!/usr/bin/env python3
"""How many windows of SQuAD a second are trained on: packed rows, and rows of one window, in turn.

python lab/squad.py --data_dir SQUAD --checkpoint C [--threads 2]

A step has about 32 windows: the making of its batch, forward, backward, clipping and AdamW. Both take one step after
the other in this process, so that they meet the same load; a figure is the median over steps.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.errors import ReportedError
from bert_horovod.measuring.tables import lines
from bert_horovod.runtime.allocator import keep_freed_memory
from bert_horovod.runtime.quiet import import_tensorflow

WARM_UP = 3  # steps, the first of which compile
CONTESTANTS = {"packed rows": "true", "a window a row": "false"}


def stepper(arguments: argparse.Namespace, packing: str) -> tuple[str, Callable[[int], float]]:
    """What the rows are like, and a function that takes the step of a number and returns its seconds a window."""
    from bert_horovod.batches.positions import step_positions
    from bert_horovod.collectives.world import World
    from bert_horovod.costs.buckets import by_size
    from bert_horovod.finetuning.squad import SquadFinetuning, SquadOptions
    from bert_horovod.training.inputs import step_inputs
    from bert_horovod.training.start import first_state
    from bert_horovod.training.step import as_tensors, build_step

    options = SquadOptions(index_dir=arguments.index_dir)
    finetuning = SquadFinetuning(
        arguments.checkpoint, arguments.data_dir, arguments.train_file, arguments.dev_file, options
    )
    overrides = [f"data.packing={packing}", *arguments.overrides]
    with tempfile.TemporaryDirectory() as nowhere:
        job = finetuning.job(Path(nowhere), overrides=overrides)
        state, _ = first_state(job, World())
    recipe, source = job.recipe, job.dataset.open(0, "train")
    step = build_step(recipe, job.task, state, World(), by_size(job.task.parameters(recipe.model), 1 << 30), 1)
    step.exchange.begin(1, recipe.phase[0].steps)
    batch = recipe.phase[0].global_batch

    def take(number: int) -> float:
        started = time.perf_counter()
        ((positions, first_row),) = step_positions(number, batch, 0, 1, batch)
        rows = source.assemble(positions)
        counts = {name: float(count) for name, count in job.task.batch_counts(rows).items()}
        result = step.run([as_tensors(rows)], [first_row], step_inputs(recipe, state.progress, counts, 2e-5, 1), False)
        state.progress.count(result.finite, recipe.numerics)
        return (time.perf_counter() - started) / counts["windows"]

    mean = len(source.windows.question) / source.count
    return f"{batch} rows of {recipe.phase[0].sequence_length}, {mean:.2f} windows each", take


def compare(arguments: argparse.Namespace) -> str:
    """The table."""
    steppers = {name: stepper(arguments, packing) for name, packing in CONTESTANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for number in range(WARM_UP + arguments.steps):
        for name, (_, take) in steppers.items():
            taken = take(number)
            if number >= WARM_UP:
                seconds[name].append(taken)
    cells = [["contestant", "a step", "windows/s", "packed rows are so many times as fast"]]
    first = seconds["packed rows"]
    for name, (described, _) in steppers.items():
        times = statistics.median(their / our for their, our in zip(seconds[name], first, strict=True))
        cells.append([name, described, f"{1 / statistics.median(seconds[name]):,.1f}", f"{times:.2f} x"])
    return lines(cells)


def main() -> int:
    """Measure and print the table."""
    keep_freed_memory()  # as `bert-horovod` does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, type=Path, help="Hugging Face BERT directory, or an output_dir")
    parser.add_argument("--data_dir", type=Path, help="SQuAD's files")
    parser.add_argument("--train_file", type=Path, help="instead of data_dir's")
    parser.add_argument("--dev_file", type=Path, help="instead of data_dir's")
    parser.add_argument("--index_dir", type=Path, help="where tokens are kept")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="a setting of the recipe")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: expected at least 1")
    import_tensorflow()
    from bert_horovod.runtime.devices import use_devices

    use_devices(0, 1, arguments.threads)
    try:
        print(compare(arguments))
    except ReportedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
