"""Look into a token store: print its totals and warnings, or rows as training sees them.

bert-horovod inspect STORE                           totals, lengths, unknown tokens by source, warnings
bert-horovod inspect STORE --row 0 --recipe F        the first row of the recipe's first phase, masked
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import RECIPE, add_overrides, add_stores, data_dir_words, require_least
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table

if TYPE_CHECKING:
    from bert_horovod.batches.text.mixture import Mixture
    from bert_horovod.batches.text.rows import Rows
    from bert_horovod.corpus.stores import Stores

_DEFAULT_LENGTH = 128
_EPOCHS = 1_000_000  # positions stay within 64 bits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_stores(parser)
    parser.add_argument(
        "--row", type=int, metavar="N", help="print this row of an epoch, from 0, as text with its masks and pairs"
    )
    rows = parser.add_argument_group("with --row")
    rows.add_argument("--rows", type=int, default=1, metavar="COUNT", help="rows to print (default: %(default)s)")
    rows.add_argument("--epoch", type=int, default=0, metavar="E", help="epoch, from 0 (default: %(default)s)")
    rows.add_argument(
        "--split", choices=("train", "held_out"), default="train", help="which part of the store (default: %(default)s)"
    )
    rows.add_argument("--recipe", type=Path, metavar="FILE", help=RECIPE + " (default: every setting's default)")
    rows.add_argument("--phase", type=int, default=0, metavar="I", help="phase, from 0 (default: %(default)s)")
    rows.add_argument(
        "--sequence_length",
        type=int,
        metavar="N",
        help=f"positions per row, where no recipe says it (default: {_DEFAULT_LENGTH})",
    )
    add_overrides(rows, "objective.whole_word_masking=true")
    rows.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices go if the token store is read-only"
    )
    for action in rows._group_actions:
        read_with(action, "with --row", lambda arguments: arguments.row is not None)


def run(arguments: argparse.Namespace) -> None:
    """Print the report, or the rows."""
    from bert_horovod.corpus.stores import open_stores

    stores = open_stores(data_dir_words(arguments))
    if arguments.row is None:
        from bert_horovod.corpus.statistics import report

        for name, store in stores.items():
            print(f"{name}: " * bool(name) + report(store))
        return
    _print_rows(arguments, stores, _recipe(arguments, stores))


def _recipe(arguments: argparse.Namespace, stores: "Stores") -> Recipe:
    """The recipe, or the defaults, checked against the stores and the flags."""
    from bert_horovod.batches.layout import check_vocabulary

    if arguments.recipe is None:
        length = _DEFAULT_LENGTH if arguments.sequence_length is None else arguments.sequence_length
        recipe = recipe_from_table({"phase": [{"sequence_length": length}]}, arguments.overrides)
    else:
        if arguments.sequence_length is not None:
            raise UserError(
                f"--sequence_length {arguments.sequence_length} and --recipe {arguments.recipe}: the recipe says how "
                f"long rows are; use --set phase.{arguments.phase}.sequence_length={arguments.sequence_length}"
            )
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        check_vocabulary(recipe, next(iter(stores.values())), padded=True)
    if not 0 <= arguments.phase < len(recipe.phase):
        raise UserError(
            f"--phase {arguments.phase}: the recipe has {len(recipe.phase)} [[phase]] table(s), counted from 0"
        )
    return recipe


def _print_rows(arguments: argparse.Namespace, stores: "Stores", recipe: Recipe) -> None:
    import numpy as np

    from bert_horovod.batches.layout import special_ids
    from bert_horovod.batches.text.mixture import HeldOutParts, Mixture, dataset_of
    from bert_horovod.batches.text.shown_rows import LEGEND, RowText

    rows = dataset_of(stores, recipe, arguments.index_dir).open(arguments.phase, arguments.split)
    if isinstance(rows, HeldOutParts):
        raise UserError("--split held_out: each store is judged alone; expected one --data_dir, without a name")
    _refuse_outside(arguments, rows)
    print(
        f"{arguments.split}, epoch {arguments.epoch}, {rows.count:,} rows of "
        f"{recipe.phase[arguments.phase].sequence_length} positions an epoch, seed {recipe.data.seed}\n{LEGEND}"
    )
    store = next(iter(stores.values()))
    special = special_ids(store.vocabulary, store.tokenizer_settings)
    text = RowText(store.vocabulary, special, recipe.objective, store.tokenizer_settings)
    for number in range(arguments.row, arguments.row + arguments.rows):
        batch = rows.assemble(np.array([arguments.epoch * rows.count + number]))
        whose = f" of {rows.names[batch['stores'][0]]}" if isinstance(rows, Mixture) else ""
        print(f"\nrow {number}{whose}: " + "\n".join(text.lines({name: array[0] for name, array in batch.items()})))


def _refuse_outside(arguments: argparse.Namespace, rows: "Rows | Mixture") -> None:
    require_least("--rows", arguments.rows)
    if not 0 <= arguments.epoch < _EPOCHS:
        raise UserError(f"--epoch {arguments.epoch}: expected 0 to {_EPOCHS - 1:,}")
    last = arguments.row + arguments.rows - 1
    if not 0 <= arguments.row <= last < rows.count:
        asked = f"--row {arguments.row}" + (f" --rows {arguments.rows}" if arguments.rows > 1 else "")
        raise UserError(
            f"{asked}: an epoch of the {arguments.split} rows has {rows.count:,}; expected rows from 0 to "
            f"{rows.count - 1:,}"
        )
