"""A table whose rows are answered in blocks, in their order, so that memory does not grow with it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bert_horovod.corpus.reading.sources import ITEMS_BYTES
from bert_horovod.corpus.reading.table_files import table_blocks
from bert_horovod.inference.options import Options


class InputRows(NamedTuple):
    """Some rows of a table."""

    first: int  # the number of the first one in the table, from 0
    texts: tuple[list[str], ...]  # of each column of text
    kept: list[list[str]]  # the fields that stand beside the answers


class InputTable:
    """Reads a table once at the start, so that mistakes are told before the first answer, and again in blocks.

    `ours`: the columns of the answers, see Options.kept; `most`: bytes of a block, about. It has `count`, the number of
    rows, and `kept_names`, those of the columns to keep. Raises ReportedError if the file cannot be read, or is no such
    table.
    """

    def __init__(
        self, source: Path, text_columns: tuple[str, ...], ours: list[str], options: Options, most: int = ITEMS_BYTES
    ) -> None:
        self._columns, self._ours, self._options = text_columns, ours, options
        self._read = partial(table_blocks, source, text_columns, options.dialect, most=most)
        self.count = 0
        for table in self._read():
            table.places(text_columns, "--text_columns")
            self.kept_names, _ = options.kept(table, ours)
            self.count += len(table.rows)

    def __iter__(self) -> Iterator[InputRows]:
        first = 0
        for table in self._read():
            places = table.places(self._columns, "--text_columns")
            texts = tuple([fields[place] for _, fields in table.rows] for place in places)
            yield InputRows(first, texts, self._options.kept(table, self._ours)[1])
            first += len(table.rows)
