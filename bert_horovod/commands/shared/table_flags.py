"""Flags that say how a user's tables are written, and how labels are read from them and given."""

import argparse

from bert_horovod.corpus.reading.table_files import Dialect, require_encoding
from bert_horovod.errors import UserError


def add_dialect(parser: argparse.ArgumentParser) -> None:
    """Declare --encoding and --quoted_tsv."""
    parser.add_argument(
        "--encoding", metavar="NAME", help="of tables, as in latin-1, cp1252 or utf-16 (default: utf-8)"
    )
    parser.add_argument(
        "--quoted_tsv",
        action="store_true",
        help="TSV tables have quotation marks around fields, as spreadsheets and pandas write them",
    )


def dialect_of(arguments: argparse.Namespace) -> Dialect:
    """The dialect of the flags of `add_dialect`; raises UserError for an unknown encoding."""
    return Dialect(require_encoding(arguments.encoding or "utf-8"), arguments.quoted_tsv)


def threshold_of(text: str | None) -> float | None:
    """The value of --threshold for labels: a probability; None: "dev", to choose it on the dev set.

    Raises:
        UserError: it is neither.
    """
    if text in (None, "dev"):
        return 0.5 if text is None else None
    try:
        threshold = float(text)
    except ValueError:
        threshold = -1.0
    if not 0 < threshold < 1:
        raise UserError(f"--threshold {text}: expected a probability between 0 and 1, or dev")
    return threshold
