"""Find the largest micro-batch that fits into a limit of memory; the global batch stays the recipe's.

bert-horovod bench memory --recipe bert-base --limit 16GiB

It runs real optimizer steps on full synthetic rows, each try in a process of its own. On a GPU the limit is for
TensorFlow's allocations; on a CPU it is for resident memory, the program itself included, and a try that goes 10 %
above it is ended. Of the memory that only several ranks need, the buckets' copies are measured, Horovod's own buffers
are not.
"""

import argparse
import dataclasses
import json

from bert_horovod.commands.shared.flags import RECIPE, add_overrides, require_least
from bert_horovod.costs.derived import derive
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.wording import gibibytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--recipe", required=True, metavar="FILE", help=RECIPE)
    parser.add_argument(
        "--limit", required=True, metavar="SIZE", help="memory of a rank, as 16GiB, 900MiB, 24GB or 12e9 (bytes)"
    )
    parser.add_argument(
        "--world_size",
        type=int,
        default=1,
        metavar="N",
        help="ranks that will share the global batch (default: %(default)s); only one is run",
    )
    add_overrides(parser, "numerics.precision=bfloat16")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(arguments: argparse.Namespace) -> None:
    """Try, print each try, then the result."""
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    require_least("--world_size", arguments.world_size)
    from bert_horovod.measuring.largest_micro_batch import Try, largest_micro_batch, least_padding, parse_bytes

    limit_bytes = parse_bytes(arguments.limit)
    for phase in recipe.phase:
        derive(recipe, phase, arguments.world_size)  # refuses a batch that the ranks cannot share, before anything runs
    tries: list[Try] = []

    def tell(attempt: Try) -> None:
        tries.append(attempt)
        if not arguments.json:
            if len(tries) == 1:
                print(f"limit {gibibytes(limit_bytes)}\nphase  length  micro-batch         peak  estimate  ratio")
            above = ">" if attempt.ended else " "
            print(
                f"{attempt.phase:5}  {recipe.phase[attempt.phase].sequence_length:6}  {attempt.micro_batch:11}  "
                f"{above}{gibibytes(attempt.peak_bytes):>10}  {attempt.estimate_bytes / 2**30:8.2f}  "
                f"{attempt.ratio:5.2f}  {'fits' if attempt.fits else 'does not fit'}",
                flush=True,
            )

    largest = largest_micro_batch(recipe, limit_bytes, arguments.world_size, tell)
    chosen = least_padding(recipe, largest, arguments.world_size)
    if arguments.json:
        print(json.dumps(_result(recipe, limit_bytes, arguments.world_size, largest, chosen, tries)))
    else:
        _print_result(recipe, arguments.world_size, largest, chosen)


def _with(recipe: Recipe, micro_batch: int) -> Recipe:
    return dataclasses.replace(recipe, execution=dataclasses.replace(recipe.execution, micro_batch=micro_batch))


def _print_result(recipe: Recipe, world_size: int, largest: int, chosen: int) -> None:
    print(f"largest micro-batch that fits: {largest}")
    for i, phase in enumerate(recipe.phase):
        count = derive(_with(recipe, chosen), phase, world_size).micro_batches
        empty = count * world_size * chosen - phase.global_batch
        print(
            f"phase {i}: {phase.global_batch:,} rows a step: {world_size} rank(s) x {count} micro-batch(es) of {chosen}"
            + (f"; {empty} of these rows are empty" if empty else "")
        )
    if chosen < largest:
        print(f"{chosen} makes as many micro-batches as {largest}, with fewer empty rows")
    print(f"--set execution.micro_batch={chosen}")


def _result(
    recipe: Recipe, limit_bytes: int, world_size: int, largest: int, chosen: int, tries: list
) -> dict[str, object]:
    return {
        "limit_bytes": limit_bytes,
        "world_size": world_size,
        "largest_micro_batch": largest,
        "micro_batch": chosen,
        "micro_batches": [derive(_with(recipe, chosen), phase, world_size).micro_batches for phase in recipe.phase],
        "tries": [dataclasses.asdict(attempt) | {"ratio": attempt.ratio} for attempt in tries],
    }
