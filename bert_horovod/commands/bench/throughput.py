"""Time the training step as a run does it: real rows of a token store, accumulation, exchange and update.

bert-horovod bench throughput --recipe F --data_dir D                                        one process
bert-horovod launch -np 8 -hostfile hosts -- bench throughput --recipe F --data_dir D        many ranks

A step of many micro-batches is timed with two of them, because all but the last are alike; step s and rows/s are of the
recipe's whole step. `bert-horovod tune` compares settings by this benchmark.
"""

import argparse
import json
from pathlib import Path

from bert_horovod.commands.shared.flags import RECIPE, add_overrides, add_tuned
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.recipe_files.tuned import tuned_overrides
from bert_horovod.runtime import lazy_tensorflow as tf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help=RECIPE)
    parser.add_argument("--data_dir", required=True, type=Path, metavar="DIR", help="token store")
    parser.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices go if the token store is read-only"
    )
    add_tuned(parser)
    add_overrides(parser)
    parser.add_argument("--phase", type=int, default=0, metavar="N", help="phase, from 0 (default: %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="X",
        help="seconds of timed steps, two at least (default: %(default)s)",
    )
    parser.add_argument(
        "--give_up_above", type=float, metavar="X", help="end after one timed step if it takes more seconds"
    )
    parser.add_argument("--memory", metavar="SIZE", help="end a CPU rank that takes more, as 16GiB or 900MiB")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Measure on all ranks; rank 0 prints."""
    recipe = load_recipe(arguments.recipe, [*tuned_overrides(arguments.tuned), *arguments.overrides])
    if not 0 <= arguments.phase < len(recipe.phase):
        raise UserError(f"--phase {arguments.phase}: the recipe has phases 0 to {len(recipe.phase) - 1}")
    if not 0 <= arguments.seconds < float("inf"):
        raise UserError(f"--seconds {arguments.seconds:g}: expected 0 or more")
    from bert_horovod.corpus.store import open_store

    store = open_store(arguments.data_dir)

    from bert_horovod.collectives.launched import launch
    from bert_horovod.collectives.starting import connect
    from bert_horovod.measuring.largest_micro_batch import parse_bytes
    from bert_horovod.measuring.real_step import RealStep, measure
    from bert_horovod.runtime.devices import host_has_gpu, use_devices
    from bert_horovod.runtime.memory_guard import OUT_OF_MEMORY, end_above
    from bert_horovod.training.start import check_recipe

    launched = launch()
    check_recipe(recipe, store, launched.size)
    if arguments.memory and not host_has_gpu():
        end_above(parse_bytes(arguments.memory, "--memory"))
    world = connect(launched, recipe)
    use_devices(world.local_rank, world.local_size, recipe.execution.threads)
    bound_s = float("inf") if arguments.give_up_above is None else arguments.give_up_above
    try:
        step = RealStep(recipe, arguments.phase, store, arguments.index_dir, world)
        measured = measure(step, recipe, arguments.phase, world, arguments.seconds, bound_s)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise RunError(f"{OUT_OF_MEMORY}: {error}") from error
    step.close()
    if world.rank == 0:
        print(json.dumps(measured) if arguments.json else _text(measured), flush=True)
    world.barrier()
    world.shutdown()


def _text(measured: dict) -> str:
    from bert_horovod.reporting.tables import table

    return (
        f"{table([measured])}\n{measured['world_size']} rank(s), {measured['micro_batches']} micro-batch(es) of "
        f"{measured['micro_batch_s']:.4g} s; update {measured['update_s']:.4g} s; "
        f"waited {measured['reduce_wait_s']:.4g} s for sums and {measured['input_wait_s']:.4g} s for rows in a step"
    )
