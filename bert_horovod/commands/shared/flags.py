"""Flags that several commands and benchmarks share, and texts that come as arguments."""

import argparse
import math
import os
from pathlib import Path

from bert_horovod.errors import UserError

RECIPE = "a recipe in TOML, or the name of one that `bert-horovod recipes` lists"  # help text of --recipe


def add_path(parser: argparse.ArgumentParser, name: str, flag: str, metavar: str, what: str) -> None:
    """Declare a path that is named alone, as `name`, or after a flag, which names the value too; one is required."""
    either = _add_alone(parser, name, flag, what)
    either.add_argument(flag, type=Path, metavar=metavar, help=f"the same as {name}")


def add_stores(parser: argparse.ArgumentParser) -> None:
    """Declare a store that is named alone, or stores by --data_dir; `data_dir_words` reads them."""
    add_data_dirs(_add_alone(parser, "STORE", "--data_dir", "token store, made by: bert-horovod prepare"), False)


def data_dir_words(arguments: argparse.Namespace) -> list[Path]:
    """What --data_dir names, for corpus.stores.open_stores."""
    return arguments.data_dir if isinstance(arguments.data_dir, list) else [arguments.data_dir]


def _add_alone(parser: argparse.ArgumentParser, name: str, flag: str, what: str) -> argparse._MutuallyExclusiveGroup:
    either = parser.add_mutually_exclusive_group(required=True)
    dest = flag.removeprefix("--")
    either.add_argument(dest, nargs="?", type=Path, metavar=name, default=argparse.SUPPRESS, help=what)
    return either


def add_data_dirs(parser: argparse._ActionsContainer, required: bool = True, more: str = "") -> argparse.Action:
    """Declare --data_dir, one or several times; its value is a list for corpus.stores.open_stores."""
    return parser.add_argument(
        "--data_dir",
        required=required,
        action="append",
        type=Path,
        metavar="[NAME=]DIR",
        help=f"token store{more}, made by: bert-horovod prepare. Several, each with a name, are mixed as data.mixture "
        "of the recipe says",
    )


def add_overrides(parser: argparse._ActionsContainer, example: str = "execution.micro_batch=8") -> None:
    """Declare --set KEY=VALUE; its values form the list `overrides`, which recipe_files.loading.load_recipe reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"override a setting of the recipe, as in --set {example}; repeatable",
    )


def add_tuned(parser: argparse.ArgumentParser) -> None:
    """Declare --tuned; recipe_files.loading.tuned_overrides makes overrides of its file, and --set wins over them."""
    parser.add_argument(
        "--tuned",
        type=Path,
        metavar="FILE",
        help="settings of [execution] that bert-horovod tune found for this machine; --set wins over them",
    )


def require_number(flag: str, number: float | None) -> None:
    """Raise UserError if a flag's value is nan, with which every comparison fails; None: the flag is not given."""
    if number is not None and math.isnan(number):
        raise UserError(f"{flag} {number}: expected a number")


def require_least(flag: str, number: int | None, least: int = 1) -> None:
    """Raise UserError if a flag's number is below `least`; None: the flag is not given."""
    if number is not None and number < least:
        raise UserError(f"{flag} {number}: expected at least {least}")


CHECKPOINT = (
    "a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT, a TF1 checkpoint of Google's (its prefix or "
    "directory), or a run's output_dir (its newest checkpoint)"
)


def whole_text(argument: str) -> str:
    """A text from the command line, with U+FFFD, which tokenizers drop, in place of bytes that are not UTF-8."""
    return os.fsencode(argument).decode("utf-8", "replace") if not argument.isascii() else argument
