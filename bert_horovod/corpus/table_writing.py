"""Writes tables of texts: TSV, CSV, or JSON Lines, as corpus/reading/table_files.py reads them."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_horovod.corpus.reading.table_files import kind_of

BLANKS = str.maketrans("\t\n\r", "   ")


def table_text(path: Path, columns: list[str], rows: list[list[Any]]) -> str:
    """A table's text, of the kind of `path`; tabs and line ends within a TSV field become blanks."""
    return "".join(table_parts(path, columns, [rows]))


class _Lines(list[str]):
    """The lines that are written, as csv.writer gives them."""

    write = list.append


def table_parts(path: Path, columns: list[str], blocks: Iterable[list[list[Any]]]) -> Iterator[str]:
    """Yield a table's text in parts: its header, if it has one, and its rows block by block; see table_text."""
    kind = kind_of(path)
    for rows in blocks if kind == "json" else itertools.chain([[columns]], blocks):
        if kind == "json":
            yield "".join(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
        elif kind == "csv":
            lines = _Lines()
            csv.writer(lines).writerows(rows)  # before Python 3.13 a field with \r is quoted for this line end alone
            yield "".join(line.removesuffix("\r\n") + "\n" for line in lines)
        else:
            yield "".join("\t".join(str(field).translate(BLANKS) for field in row) + "\n" for row in rows)
