#!/usr/bin/env python3
"""What padding costs: the training step over packed rows beside the same step over rows of one sequence.

python lab/padding.py --data_dir STORE [--data_dir STORE] [--model base | --recipe F] [--length 512]

Both steps are in one process and take turns, each time on rows that it has not seen; the making of rows is not timed.
Where a column holds two figures, the first is packed, the second padded. Seconds are medians, their ratio is the median
of each turn's. Packed rows have more masked slots and more sequences, of which all are computed, used or not: that is
in the packed step's time. Fill is real tokens, [CLS] and [SEP] included, over positions, in a whole epoch; real
tokens/s are of rows so full, and their ratio is that of the fills over that of the seconds. Attention's share is of the
floating point operations of a packed step's matrix products; scores and context are counted, the softmax is not. What
is wasted of it are pairs of positions that do not belong to one sequence: attention that skips them saves no more.
"""

import argparse
import dataclasses
import gc
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.layout import check_vocabulary
from bert_horovod.batches.text.index import RowIndex, open_index
from bert_horovod.batches.text.rows import Rows, open_rows
from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.costs.derived import matrix_products
from bert_horovod.errors import ReportedError
from bert_horovod.measuring.configuration import SIZES, describe, size_recipe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.reporting.tables import ratio, table
from bert_horovod.runtime.host import keep_freed_memory
from bert_horovod.runtime.quiet import import_tensorflow
from lab.rounds import in_turn, ratio_of, say

LENGTH, ROWS = 512, 4  # of --model, where no flag says otherwise


class Rowset(NamedTuple):
    """The rows of a store, packed or padded, and what an epoch of them amounts to."""

    rows: Rows
    recipe: Recipe
    sequences_per_row: float
    fill: float  # tokens over positions
    wasted: float  # 1 - sum(length of a sequence ** 2) / L ** 2, mean over rows


def open_rowset(store: Store, recipe: Recipe, packing: bool, index_dir: Path | None) -> Rowset:
    """The rows of the recipe's first phase, with data.packing as given; raises ReportedError as open_rows does."""
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, packing=packing))
    length = recipe.phase[0].sequence_length
    rows = open_rows(store, recipe, 0, "train", index_dir)
    index = open_index(store, length, recipe.objective.pair, packing, "train", index_dir, build=False)
    return Rowset(rows, recipe, index.windows / index.rows, *_fill_and_waste(index))


def _fill_and_waste(index: RowIndex) -> tuple[float, float]:
    length, sequences = index.sequence_length, index.classes.sequences.astype(np.float64)
    lengths = np.arange(length + 1)
    return sequences @ lengths / (index.rows * length), 1 - sequences @ lengths**2 / (index.rows * length**2)


def attention_share(rowset: Rowset) -> float:
    """The share of attention's scores and context in the floating point operations of a step's products."""
    recipe, rows = rowset.recipe, rowset.rows
    products = matrix_products(
        recipe.model,
        recipe.execution.micro_batch,
        recipe.phase[0].sequence_length,
        rows.masked_slots,
        rows.sequences,
        recipe.objective.pairs,
    )
    attention = sum(product.flops for product in products if product.name.endswith(("scores", "context")))
    return attention / sum(product.flops for product in products)


def seconds_in_turn(rowsets: list[Rowset], steps: int) -> list[list[float]]:
    """Seconds of each step over the rows of each set, one after another in each turn, after a warm-up."""
    from bert_horovod.measuring.bench import warmed_up
    from bert_horovod.measuring.synthetic import synthetic_step

    made = {}
    for rowset in rowsets:
        name = "packed" if rowset.recipe.data.packing else "padded"
        say(f"{name}: the first step compiles")
        step = synthetic_step(rowset.recipe, _batch(rowset, 0))
        warmed_up(step)
        made[name] = step, rowset

    def run(name: str, turn: int) -> float:
        step, rowset = made[name]
        step.take(_batch(rowset, turn + 1))
        return step.seconds(1)[0]

    return list(in_turn(made, steps, run, "step").values())


def _batch(rowset: Rowset, number: int) -> dict[str, np.ndarray]:
    count = rowset.recipe.execution.micro_batch
    return rowset.rows.assemble(np.arange(number * count, (number + 1) * count))


def measure(store: Store, recipe: Recipe, steps: int, index_dir: Path | None) -> dict[str, Any]:
    """A line of the table."""
    rowsets = [open_rowset(store, recipe, packing, index_dir) for packing in (True, False)]
    packed, padded = rowsets
    seconds = seconds_in_turn(rowsets, steps)
    gc.collect()  # parameters go before the next store's come: graphs hold them in cycles
    medians = [statistics.median(taken) for taken in seconds]
    positions = recipe.execution.micro_batch * recipe.phase[0].sequence_length
    step_ratio = ratio_of(*seconds)
    fill_ratio = packed.fill / padded.fill
    return {
        "store": str(store.path),
        "rows": [rowset.rows.count for rowset in rowsets],
        "fill": [rowset.fill for rowset in rowsets],
        "sequences_per_row": packed.sequences_per_row,
        "sequences": [rowset.rows.sequences for rowset in rowsets],
        "masked_slots": [rowset.rows.masked_slots for rowset in rowsets],
        "steps_s": medians,
        "step_ratio": step_ratio,
        "real_tokens_per_s": [
            positions * rowset.fill / median for rowset, median in zip(rowsets, medians, strict=True)
        ],
        "tokens_ratio": fill_ratio / step_ratio,
        "fill_ratio": fill_ratio,
        "attention_share": attention_share(packed),
        "wasted": [rowset.wasted for rowset in rowsets],
    }


def both(form: str) -> Callable[[list[float]], str]:
    """How the figures of packed and padded rows are written."""
    return lambda values: " / ".join(format(value, form) for value in values)


COLUMNS = {
    "store": ("store", str),
    "rows": ("rows an epoch", both(",")),
    "fill": ("fill", both(".1%")),
    "sequences_per_row": ("seqs/row", "{:.2f}".format),
    "sequences": ("most seqs", both("")),
    "masked_slots": ("slots", both("")),
    "steps_s": ("step s", both(".4g")),
    "step_ratio": ("step ratio", "{:.3f}".format),
    "real_tokens_per_s": ("real tokens/s", both(",.0f")),
    "tokens_ratio": ("tokens ratio", ratio),
    "fill_ratio": ("fill ratio", ratio),
    "attention_share": ("attention share of FLOPs", "{:.1%}".format),
    "wasted": ("of it wasted", both(".1%")),
}


def recipe_for(arguments: argparse.Namespace, store: Store) -> Recipe:
    """What is measured on a store; raises UserError for a setting that cannot be, or another vocabulary."""
    settings = list(arguments.overrides)
    for flag, key in (("rows", "execution.micro_batch"), ("length", "phase.0.sequence_length")):
        if getattr(arguments, flag) is not None:
            settings.append(f"{key}={getattr(arguments, flag)}")
    if arguments.recipe:
        recipe = load_recipe(arguments.recipe, settings)
    else:
        settings.insert(0, f"model.vocab_size={len(store.vocabulary)}")
        recipe = size_recipe(arguments.model, settings, ROWS, LENGTH)
    check_vocabulary(recipe, store)
    return recipe


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, action="append", type=Path, help="token store; repeatable")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--recipe", metavar="FILE", help="measure this recipe's model, in its first phase")
    model.add_argument("--model", choices=tuple(SIZES), default="base", help="(default: %(default)s)")
    parser.add_argument("--length", type=int, help=f"positions per row (default: the recipe's; of --model {LENGTH})")
    parser.add_argument(
        "--rows", type=int, help=f"rows of a step (default: the recipe's micro-batch; of --model {ROWS})"
    )
    parser.add_argument("--steps", type=int, default=10, help="steps of each kind (default: %(default)s)")
    parser.add_argument("--index_dir", type=Path, help="where row indices go if the token store is read-only")
    add_overrides(parser, "numerics.precision=bfloat16")
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: expected at least 1")
    return arguments


def main() -> int:
    """Measure and print the table."""
    keep_freed_memory()  # as `bert-horovod` does
    arguments = parse()
    try:
        stores = [open_store(path) for path in arguments.data_dir]
        recipes = [recipe_for(arguments, store) for store in stores]  # before anything takes time
        import_tensorflow()
        from bert_horovod.runtime.devices import use_devices

        use_devices(0, 1, recipes[0].execution.threads)
        lines = []
        for store, recipe in zip(stores, recipes, strict=True):
            say(f"{store.path}: {describe(recipe)}")
            lines.append(measure(store, recipe, arguments.steps, arguments.index_dir))
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(f"{describe(recipes[0])}; packed / padded\n{table(lines, COLUMNS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
