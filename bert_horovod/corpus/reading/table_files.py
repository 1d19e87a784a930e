"""Tables of texts: TSV, CSV, or JSON Lines, plain or compressed, read whole or in blocks of rows."""

import codecs
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.sources import (
    ITEMS_BYTES,
    JSON_SUFFIXES,
    WHOLE,
    SourceFile,
    SourceReader,
    in_blocks,
    suffixes,
)
from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.reading import shown

_CSV_FIELD_CHARACTERS = 1 << 24  # a long text may exceed Python's limit of 131,072
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold as an escape
_WRITTEN_SUFFIXES = ("", ".tsv", ".txt", ".csv", *JSON_SUFFIXES)
_OTHER_TABLES = (".xlsx", ".xls", ".ods", ".numbers", ".parquet", ".arrow", ".feather", ".zip")  # no text
_QUOTED = re.compile('"[^"]*"')


class Dialect(NamedTuple):
    """How a user's tables are written."""

    encoding: str = "utf-8"  # as Python names it
    quoted: bool = False  # whether a TSV's fields may be quoted, as spreadsheets and pandas write them


PLAIN = Dialect()


class Table(NamedTuple):
    """A file's rows, or a block of them."""

    path: Path
    columns: list[str]
    rows: list[tuple[int, list[str]]]  # line number, and a field for each column
    skipped: int = 0  # rows with another number of fields

    def places(self, names: tuple[str, ...], flag: str = "") -> list[int]:
        """The indices of these columns; raises UserError for one that is missing or there twice.

        Columns that have numbers for names can be counted from -1, the last, too. `flag`: the flag that names columns.
        """
        numbered, known = self.columns == _numbers(self.columns), Counter(self.columns)
        names = tuple(str(int(name) + 1 + len(known)) if numbered and name.startswith("-") else name for name in names)
        if missing := [name for name in names if name not in known]:
            numbers = "; numbers of columns, in a file without a header, are given for all of them, from 1 or from -1"
            raise UserError(
                f"{self.path} has no column {missing[0]!r}, its columns are {shown(self.columns)}; expected "
                f"{', '.join(names)}, with {_separators(self.path)}{f'; {flag} names other columns' if flag else ''}"
                f"{numbers if _NUMBER.fullmatch(missing[0]) else ''}"
            )
        if twice := [name for name in names if known[name] > 1 or names.count(name) > 1]:
            raise UserError(f"{self.path}: two columns have one name, {shown(twice[0])}; rename one, or name others")
        return [self.columns.index(name) for name in names]


class JsonList(str):
    """JSON's text of a list, which a text may look like."""


def read_table(
    path: Path,
    names: tuple[str, ...] | None = None,
    dialect: Dialect = PLAIN,
    lists: tuple[str, ...] = (),
    headless: tuple[str, ...] = (),
    skip_broken: bool = False,
) -> Table:
    """Read a whole table; see table_blocks."""
    (table,) = table_blocks(path, names, dialect, lists, headless, skip_broken, WHOLE)
    return table


def table_blocks(
    path: Path,
    names: tuple[str, ...] | None = None,
    dialect: Dialect = PLAIN,
    lists: tuple[str, ...] = (),
    headless: tuple[str, ...] = (),
    skip_broken: bool = False,
    most: float = ITEMS_BYTES,
) -> Iterator[Table]:
    """Read a table in blocks: CSV (.csv), JSON Lines (.jsonl, .ndjson, .json) or, for any other suffix, TSV.

    The suffix of a compression may follow. A CSV whose first line has semicolons or tabs and no comma is separated by
    these. In TSV quotation marks are text, as in GLUE's files, unless `dialect` says otherwise. In JSON Lines a row is
    an object of strings and numbers; a number becomes the text that JSON writes for it.

    Args:
        path: the file.
        names: of the columns that are read; None: all. Others may hold anything: what is no text or number in JSON
            Lines becomes JSON's text, null or a missing key an empty one. If all are numbers, TSV and CSV have no
            header, and a column's number, from 1, is its name.
        dialect: how it is written.
        lists: names of columns in which JSON Lines may have a list of strings and numbers, which becomes a JsonList, or
            null, which becomes an empty one.
        headless: the columns of a TSV or CSV file without a header: one whose first line has as many fields as these.
        skip_broken: whether rows with another number of fields than the first are skipped, and counted.
        most: bytes of a block, about.

    Raises:
        UserError: the file cannot be read or is not in its encoding, has no rows, or a row has another form than the
            first.
        DamagedData: it is compressed and damaged.
    """
    with opened(path) as reader:
        first, numbered = columns_and_rows(path, reader, dialect, names, lists)
        if not first:
            raise _empty(path)
        columns = list(headless) if len(first) == len(headless) and kind_of(path) != "json" else first
        columns = _by_number(path, columns, names or ())
        if columns is not first:
            numbered = itertools.chain([(1, first)], numbered)
        has_rows = False
        for block in in_blocks(numbered, most, lambda row: sum(map(len, row[1]))):
            rows = [row for row in block if len(row[1]) == len(columns)]
            if len(rows) < len(block) and not skip_broken:
                number, fields = next(row for row in block if len(row[1]) != len(columns))
                raise UserError(
                    f"{path}, line {number}: {len(fields)} fields, expected {len(columns)} as in its first line, with "
                    f"{_separators(path)}{_quoting_hint(path, fields, dialect)}"
                )
            if rows:
                has_rows = True
                yield Table(path, columns, rows, len(block) - len(rows))
    if not has_rows:
        raise UserError(f"{path} has no rows{'' if headless else ' under its header'}; expected one for each example")


def require_columns(path: Path, names: tuple[str, ...], flag: str, dialect: Dialect = PLAIN) -> list[str]:
    """The columns of a file; raises the errors of read_table and Table.places that its first row shows."""
    with opened(path) as reader:
        columns, _ = columns_and_rows(path, reader, dialect)
    if not columns:
        raise _empty(path)
    columns = _by_number(path, columns, names)
    Table(path, columns, []).places(names, flag)
    return columns


_NUMBER = re.compile("-?[1-9][0-9]*")


def _numbers(columns: list[str]) -> list[str]:
    return [str(number + 1) for number in range(len(columns))]


def _by_number(path: Path, first: list[str], names: tuple[str, ...]) -> list[str]:
    """A table's columns: `first`, or their numbers if `names` are numbers and `first` is no header of numbers."""
    by_number = bool(names) and all(map(_NUMBER.fullmatch, names)) and kind_of(path) != "json"
    if by_number and not ({*names} <= {*first} and all(field.isdecimal() for field in first)):
        return _numbers(first)
    return first


def only_column(path: Path, dialect: Dialect = PLAIN) -> tuple[str]:
    """The column of a table that has one, for a checkpoint that names none; raises UserError for a table of several."""
    columns = require_columns(path, (), "", dialect)
    if len(columns) > 1:
        raise UserError(
            "the checkpoint does not say how its columns of text are called; name them: --text_columns; "
            f"{path} has {shown(columns)}"
        )
    return (columns[0],)


def require_encoding(encoding: str) -> str:
    """The encoding; raises UserError if Python does not know it as one of text."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        raise UserError(
            f"--encoding {encoding}: no such encoding of text; expected a name such as latin-1, cp1252 or utf-16"
        ) from error
    return encoding


def opened(path: Path, forms: str = ".csv, .tsv or .jsonl") -> SourceReader:
    """Open a file for its checked lines.

    Raises UserError if it cannot be read, or by its name is a table that is no text; `forms`: the names to give it.
    """
    refuse_other_tables(path, forms)
    try:
        return SourceReader(SourceFile(path, path.name, path.stat().st_size), bad_lines="refuse")
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror}") from error


def refuse_other_tables(path: Path, forms: str) -> None:
    """Raise UserError if a file is by its name a table that is no text; `forms`: the names to give it."""
    if path.suffix.lower() in _OTHER_TABLES:
        raise UserError(f"{path}: no table is read from {path.suffix}; save it as {forms}, in UTF-8")


def _empty(path: Path) -> UserError:
    return UserError(f"{path} is empty; expected an example in each row, with {_separators(path)}")


def columns_and_rows(
    path: Path,
    reader: SourceReader,
    dialect: Dialect = PLAIN,
    names: tuple[str, ...] | None = None,
    lists: tuple[str, ...] = (),
    broken: Callable[[int, str], None] | None = None,
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The columns of a table, and its rows: (line number, fields), as many as there are in the row.

    `broken` takes the number and the message of a row that is no CSV; None: it is a UserError. Other arguments and
    errors are those of table_blocks.
    """
    kind = kind_of(path)
    utf_8 = codecs.lookup(dialect.encoding).name == "utf-8"
    lines = reader.lines() if utf_8 else _decoded_lines(path, reader, dialect.encoding)
    if kind == "json":
        return _json_rows(path, lines, names, lists)
    first = list(itertools.islice(lines, 1))
    header, lines = (first[0][1] if first else ""), itertools.chain(first, lines)
    if kind == "csv":
        bare = _QUOTED.sub("", header)
        separator = next((separator for separator in ",;\t" if separator in bare), ",")
        numbered = _csv_rows(path, lines, separator, broken)
    else:
        numbered = _csv_rows(path, lines, "\t", broken) if dialect.quoted else _tsv_rows(lines)
    return next(numbered, (0, []))[1], numbered


def _decoded_lines(path: Path, reader: SourceReader, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file that is not in UTF-8."""
    decoder, number, rest = codecs.getincrementaldecoder(encoding)(), 1, ""
    for block in itertools.chain((block for _, block in reader.blocks()), [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except ValueError as error:
            raise UserError(
                f"{path} is not in the encoding of --encoding {encoding}: after line {number - 1:,} {error}; name "
                "another one"
            ) from error
        *lines, rest = f"{rest}{text}".split("\n")
        yield from enumerate((_whole(path, at, line, encoding) for at, line in enumerate(lines, number)), number)
        number += len(lines)
    if rest:
        yield number, _whole(path, number, rest, encoding)


def _whole(path: Path, number: int, line: str, encoding: str) -> str:
    """A decoded line without the byte order mark; raises UserError if it holds half a character, as UTF-7 may."""
    if half := SURROGATE.search(line):
        raise UserError(
            f"{path}, line {number}: by --encoding {encoding}, character {half.start() + 1:,} is {half[0]!r}, half a "
            "character; name another one"
        )
    return line.removeprefix("\ufeff") if number == 1 else line


def _quoting_hint(path: Path, fields: list[str], dialect: Dialect) -> str:
    quotes = kind_of(path) == "tsv" and not dialect.quoted and any('"' in field for field in fields)
    mend = "let its name end with .csv, or give --quoted_tsv where the command has it"
    return f"; if a spreadsheet or pandas wrote it, with quotation marks around fields: {mend}" if quotes else ""


def require_table_name(flag: str, path: Path) -> None:
    """Raise UserError if a table cannot be written to a file of this name: its suffix is that of another format."""
    if path.suffix.lower() not in _WRITTEN_SUFFIXES:
        raise UserError(
            f"{flag} {path}: no table is written as {path.suffix}; expected a name that ends with .tsv, .csv or .jsonl"
        )


def kind_of(path: Path) -> str:
    """What a file is by its name: "csv", "json" or "tsv"."""
    suffix = suffixes(path)[0]
    return "csv" if suffix == ".csv" else "json" if suffix in JSON_SUFFIXES else "tsv"


def _separators(path: Path) -> str:
    return {
        "csv": "commas between the fields, and quotation marks around one that holds a comma",
        "json": "an object of the same keys in each line",
        "tsv": "tabs between the fields",
    }[kind_of(path)]


def _tsv_rows(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's fields; blank lines at the end of the file are no rows, others have one field."""
    blank: list[tuple[int, list[str]]] = []
    for number, line in lines:
        fields = line.removesuffix("\r").split("\t")
        if len(fields) == 1 and not fields[0].strip():
            blank.append((number, fields))
            continue
        yield from blank
        blank.clear()
        yield number, fields


def _csv_rows(
    path: Path, lines: Iterator[tuple[int, str]], separator: str, broken: Callable[[int, str], None] | None
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_CSV_FIELD_CHARACTERS)
    reader = csv.reader((f"{line}\n" for _, line in lines), strict=True, delimiter=separator)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            message = (
                f"{path}, line {number}: no CSV ({error}); expected a quotation mark in a quoted field to be doubled"
            )
            if broken is None:
                raise UserError(message) from error
            broken(number, message)
            continue
        if fields:  # a blank line has none
            yield number, fields


def _json_rows(
    path: Path, lines: Iterator[tuple[int, str]], names: tuple[str, ...] | None, lists: tuple[str, ...]
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    objects = json_objects(path, lines)
    first = next(objects, None)
    if first is None:
        return [], iter(())
    columns = list(first[1])
    read = columns if names is None else [name for name in columns if name in names]

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, fields in itertools.chain([first], objects):
            if missing := [name for name in read if name not in fields]:
                raise UserError(
                    f"{path}, line {number}: no {missing[0]!r} in it; expected the keys of the first line in every line"
                )
            texts = {name: _text(path, number, name, fields[name], name in lists) for name in read}
            yield number, [texts[name] if name in texts else _any_text(fields.get(name)) for name in columns]

    return columns, rows()


def _any_text(value: Any) -> str:
    """What stands for a value of a column that nothing reads."""
    if isinstance(value, str) and not SURROGATE.search(value):
        return value
    return "" if value is None else json.dumps(value)


def json_objects(
    path: Path, lines: Iterator[tuple[int, str]], expected: str = "an object in each line"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank; raises UserError for a line that is no object."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: no JSON ({error}); expected {expected}") from error
        if not isinstance(fields, dict):
            raise UserError(f"{path}, line {number}: {shown(fields)}; expected {expected}")
        yield number, fields


def _text(path: Path, number: int, name: str, value: Any, list_allowed: bool) -> str:
    if isinstance(value, str) and not SURROGATE.search(value):
        return value
    if isinstance(value, int | float):  # true and false too
        return json.dumps(value)
    if list_allowed and (value is None or isinstance(value, list)):
        items = [item if item is None else _text(path, number, name, item, False) for item in value or ()]
        return JsonList(json.dumps(items))
    squad = name == "data" and isinstance(value, list)
    why = "; a file in SQuAD's format is for question answering alone" if squad else ""
    raise UserError(f"{path}, line {number}: {name!r} is {shown(value)[:60]}; expected text or a number{why}")
