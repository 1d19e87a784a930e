"""The formats of input files, by the suffixes of their names."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bert_horovod.corpus.reading import arrow_files, sources, wet_files
from bert_horovod.corpus.reading.arrow_files import ArrowReader, row_documents
from bert_horovod.corpus.reading.compression import has_streams
from bert_horovod.corpus.reading.sources import DUMP_SUFFIX, JSON_SUFFIXES, SourceFile, SourceReader, suffixes
from bert_horovod.corpus.reading.table_files import columns_and_rows
from bert_horovod.corpus.reading.text import Section, record_sections, text_documents
from bert_horovod.corpus.reading.wet_files import wet_documents
from bert_horovod.corpus.reading.wikipedia import article_documents
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class Format:
    """How files of a format are read.

    Attributes:
        suffixes: of the files' names, without a compression's.
        documents: yields the sections of each document of an opened source; the second argument is that of
            `read_sections`.
        may_be_cut: whether a source can be read in pieces (pieces.py), under this rule of documents.
        reader: opens a source, or a piece of it, if it is not read as lines; its arguments are those of ArrowReader.
        may_be_compressed: whether files have a compression's suffix too; else such a file is text.
        only_named: whether such files in a directory are passed over: they are read if they are named, or by a glob.
    """

    suffixes: tuple[str, ...]
    documents: Callable[..., Iterator[Iterator[Section]]]  # the first argument is a SourceReader, or `reader`'s
    may_be_cut: Callable[[SourceFile, str], bool]
    reader: Callable[..., SourceReader] | None = None
    may_be_compressed: bool = True
    only_named: bool = False


NOT_JSON = "lines that are not JSON objects"  # names in SourceReader.passed_over
NO_TEXT = "lines without text"
_MISSING = object()


def json_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a line; see formats.read_sections."""
    for number, line in reader.lines():
        if line.strip():
            text_and_title = _json_text(line, number, reader)
            if text_and_title is not None:
                yield record_sections(number, *text_and_title, documents, reader)


def _json_text(line: str, number: int, reader: SourceReader) -> tuple[str, str] | None:
    """The text and the title of a line of JSON; None for a bad line that is skipped."""
    where, name = reader.place(number), reader.text_field
    mend = f'expected one JSON object a line, with the text in a string field "{name}" (see --text_field): mend it'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reader.pass_over(number, NOT_JSON, f"{where}: not JSON ({error}); {mend}")
        return None
    if not isinstance(record, dict):
        reader.pass_over(number, NOT_JSON, f"{where}: a {type(record).__name__} instead of an object; {mend}")
        return None
    text, title = _field(record, name), record.get("title")
    if not isinstance(text, str):
        problem = "no field" if text is _MISSING else f"a {type(text).__name__} in the field"
        message = f'{where}: {problem} "{name}", its fields are {shown(list(record))}; {mend}'
        reader.pass_over(number, NO_TEXT, message)
        return None
    return _whole_characters(text), _whole_characters(title) if isinstance(title, str) else ""


def _field(record: dict[str, Any], name: str) -> Any:
    """The value of a field, which may be within others, as in article.abstract; or _MISSING."""
    if name in record:
        return record[name]
    head, dot, rest = name.partition(".")
    within = record.get(head) if dot else None
    return _field(within, rest) if isinstance(within, dict) else _MISSING


def _whole_characters(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates (escaped halves of a pair), which are no characters."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


NO_ROW = "rows that do not fit the table's header"  # a name in SourceReader.passed_over


def table_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a row; see formats.read_sections."""
    path, name = cast("Path", reader.source.path), reader.text_field  # a Place has the same names of its parts
    columns, rows = columns_and_rows(path, reader, broken=lambda number, text: reader.pass_over(number, NO_ROW, text))
    if columns.count(name) != 1:
        raise UserError(
            f"{path} has {'two columns' if name in columns else 'no column'} {name!r}, its first line is "
            f"{shown(columns)}; expected the names of its columns there, and that of the text: --text_field NAME"
        )
    text, title = columns.index(name), columns.index("title") if "title" in columns else None
    for number, fields in rows:
        where = reader.place(number)
        if len(fields) != len(columns):
            message = f"{where}: {len(fields)} fields, expected {len(columns)} as in the first line"
        elif '""' in fields[text][1:-1] and fields[text][0] == fields[text][-1] == '"':
            message = f"{where}: the text stands within quotation marks"  # only TSV keeps them
        else:
            yield record_sections(number, fields[text], fields[title] if title is not None else "", documents, reader)
            continue
        quoted = '"' in "".join(fields)
        mend = "; if a TSV's fields are quoted, as spreadsheets and pandas write them: let its name end with .csv"
        reader.pass_over(number, NO_ROW, message + mend * quoted)


TEXT = Format(
    suffixes=(".txt", ".text", ""),
    documents=text_documents,
    may_be_cut=lambda source, documents: not source.compression and documents != "file",
)
JSON_LINES = Format(
    suffixes=JSON_SUFFIXES,
    documents=json_documents,
    may_be_cut=lambda source, _: not source.compression,
)
DUMP = Format(
    suffixes=(DUMP_SUFFIX,),
    documents=article_documents,
    may_be_cut=lambda source, _: has_streams(source.open) if source.compression == ".bz2" else not source.compression,
)
TABLE = Format(
    suffixes=(".parquet", ".arrow"),
    documents=row_documents,
    may_be_cut=lambda _source, _documents: True,
    reader=ArrowReader,
    may_be_compressed=False,
)
WRITTEN_TABLE = Format(
    suffixes=(".csv", ".tsv"),
    documents=table_documents,
    may_be_cut=lambda _source, _documents: False,
    only_named=True,
)
WET = Format(
    suffixes=(".wet",),
    documents=wet_documents,
    may_be_cut=lambda _source, _documents: False,
)
FORMATS = {suffix: each for each in (TEXT, JSON_LINES, DUMP, TABLE, WRITTEN_TABLE, WET) for suffix in each.suffixes}
BAD_LINES = (
    *(*sources.BAD_LINES, NOT_JSON, NO_TEXT),
    *(*arrow_files.BAD_LINES, NO_ROW, *wet_files.BAD_LINES),
)  # names in SourceReader.passed_over


def format_of(source: SourceFile) -> Format:
    """The format of a file by its name; TEXT for an unknown suffix."""
    found = FORMATS.get(suffixes(source.path)[0], TEXT)
    return TEXT if source.compression and not found.may_be_compressed else found


def require_text_field(sources: Iterable[SourceFile], text_field: str) -> None:
    """Raise UserError if a text field is named and no source has fields."""
    if text_field != "text" and all(format_of(source) in (TEXT, DUMP, WET) for source in sources):
        raise UserError(
            f"--text_field {text_field}: it is read only with JSON Lines (.jsonl), Parquet, Arrow, CSV and TSV, and no "
            "input is one; leave it out"
        )


def read_sections(reader: SourceReader, documents: str, skip_documents: int = 0) -> Iterator[Section]:
    """Yield the sections of a source's documents; raises ReportedError for bad input.

    Every document has at least one section: an empty one if it has no text. reader.passed_over counts the input that is
    left out, and the sentences that are cut because they are longer than a section.

    Args:
        reader: the opened source.
        documents: "file": a plain file is a document, a blank line ends a paragraph. "blank_line": a blank line ends
            a document and a line is a sentence. "paragraph_lines": the same, but a line is a paragraph. In JSON Lines
            and tables, every line or row is a document in any case, and its text is read by the same rule. An article
            of a Wikipedia dump and a page of a WET file are documents in any case; a page's line is a paragraph.
        skip_documents: documents to skip at the beginning; they are not counted, and not parsed where that is possible.
    """
    section_iterators = format_of(reader.source).documents(reader, documents)
    for _ in islice(section_iterators, skip_documents):
        reader.passed_over.clear()
    for document in section_iterators:
        yield from document
