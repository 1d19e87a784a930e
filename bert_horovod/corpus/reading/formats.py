"""The formats of input files, by the suffixes of their names, and those that are read record by record.

WET files have the texts that Common Crawl extracts from web pages. Such a file is a sequence of WARC records (ISO
28500): a version, named fields, an empty line, a block of Content-Length bytes, and two line ends. Each record may be a
gzip member of its own.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bert_horovod.corpus.reading import arrow_files, sources
from bert_horovod.corpus.reading.arrow_files import ArrowReader, row_documents
from bert_horovod.corpus.reading.compression import has_streams
from bert_horovod.corpus.reading.sources import (
    DUMP_SUFFIX,
    JSON_SUFFIXES,
    MAXIMUM_LINE_BYTES,
    SourceFile,
    SourceReader,
    suffixes,
    text_of,
)
from bert_horovod.corpus.reading.table_files import columns_and_rows
from bert_horovod.corpus.reading.text import Section, record_sections, text_documents
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class Format:
    """How files of a format are read."""

    suffixes: tuple[str, ...]  # of the files' names, without a compression's
    # Yields the sections of each document of a SourceReader, or of what `reader` opens, by a rule of read_sections
    documents: Callable[..., Iterator[Iterator[Section]]]
    # Whether a source can be read in pieces (pieces.py), under this rule of documents
    may_be_cut: Callable[[SourceFile, str], bool] = lambda _source, _documents: False
    # Opens a source, or a piece of it, if it is not read as lines; its arguments are those of ArrowReader
    reader: Callable[..., SourceReader] | None = None
    may_be_compressed: bool = True  # whether files have a compression's suffix too; else such a file is text
    only_named: bool = False  # in a directory such files are passed over: they are read if named, or by a glob


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


def _article_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document an article of a dump of Wikipedia, by a module that is read where there is a dump alone."""
    wikipedia = importlib.import_module("bert_horovod.corpus.reading.wikipedia")
    return wikipedia.article_documents(reader, documents)


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


NOT_EXTRACTED = "records that are not extracted text"  # names in SourceReader.passed_over
NOT_TEXT = "records that are not UTF-8 text"
TOO_LONG = f"records longer than {MAXIMUM_LINE_BYTES >> 20} MiB"
_HEAD_BYTES = 1 << 20  # of a record's fields, at most


def wet_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a page, a paragraph a line: see formats.read_sections; the page's URI is its title."""
    blocks = _Blocks(reader)
    number = 0
    while head := blocks.head(number + 1):
        number += 1
        where = f"{reader.source.path}, record {number}"
        fields = _fields(head, where)
        length = fields.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            raise DamagedData(f"{where}: Content-Length is {shown(length)}, expected bytes: fetch the file again")
        is_long = int(length) > MAXIMUM_LINE_BYTES
        block = blocks.take(int(length), where, keep=not is_long)
        kind, content = fields.get("warc-type", "").lower(), fields.get("content-type", "text/plain").lower()
        if kind != "conversion" or not content.startswith("text/plain"):
            if kind != "warcinfo":  # says how the file was made
                reader.passed_over[NOT_EXTRACTED] += 1
        elif is_long:
            reader.pass_over(number, TOO_LONG, f"{where}: {int(length):,} bytes; expected a page: leave it out")
        elif (text := text_of(block, 1)) is None:
            reader.pass_over(number, NOT_TEXT, f"{where}: not UTF-8 text; expected what Common Crawl writes: mend it")
        else:
            title = fields.get("warc-target-uri", "")
            yield record_sections(number, text, title, "paragraph_lines" if documents == "file" else documents, reader)


def _fields(head: bytes, where: str) -> dict[str, str]:
    """The named fields of a record by their names in lower case; a line that begins with a blank continues a field."""
    version, *lines = head.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    if not version.startswith("WARC/"):
        raise DamagedData(
            f"{where} begins with {shown(version[:40])}, expected WARC/1.0: the record before it has another "
            "Content-Length, or this is no WET file; fetch the file again"
        )
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:1] in (" ", "\t"):
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
            continue
        name, _, value = line.partition(":")
        name = name.strip().lower()
        fields.setdefault(name, value.strip())
    return fields


class _Blocks:
    """The bytes of a source, by records' heads and by number."""

    def __init__(self, reader: SourceReader):
        self._blocks, self._path = (block for _, block in reader.blocks()), reader.source.path
        self._held, self._at = b"", 0

    def head(self, number: int) -> bytes:
        """The next record's head without its empty line; b"" at the end of the file."""
        while True:
            while self._held[self._at : self._at + 1] in (b"\r", b"\n"):
                self._at += 1
            ends = [(end, end + len(blank)) for blank in (b"\r\n\r\n", b"\n\n") if (end := self._find(blank)) >= 0]
            if ends:
                begin, (end, self._at) = self._at, min(ends)
                return self._held[begin:end]
            if len(self._held) - self._at > _HEAD_BYTES:
                raise DamagedData(f"{self._path}, record {number}: no record of WARC begins here; fetch the file again")
            if not self._more():
                if self._held[self._at :]:
                    raise self._truncated(f"{self._path}, record {number}")
                return b""

    def take(self, count: int, where: str, keep: bool) -> bytes:
        """The next bytes; b"" if they are not to be kept, so that they need no memory."""
        parts = []
        while len(part := self._held[self._at : self._at + count]) < count:
            parts += [part] * keep
            count -= len(part)
            self._at += len(part)
            if not self._more():
                raise self._truncated(where)
        self._at += count
        return b"".join([*parts, part]) if keep else b""

    def _find(self, blank: bytes) -> int:
        return self._held.find(blank, self._at, self._at + _HEAD_BYTES)

    def _more(self) -> bool:
        block = next(self._blocks, b"")
        self._held, self._at = self._held[self._at :] + block, 0
        return bool(block)

    def _truncated(self, where: str) -> DamagedData:
        return DamagedData(f"{where}: the file ends within it; expected a whole file: fetch it again")


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
    documents=_article_documents,
    may_be_cut=lambda source, _: has_streams(source.open) if source.compression == ".bz2" else not source.compression,
)
TABLE = Format(
    suffixes=(".parquet", ".arrow"),
    documents=row_documents,
    may_be_cut=lambda _source, _documents: True,
    reader=ArrowReader,
    may_be_compressed=False,
)
WRITTEN_TABLE = Format(suffixes=(".csv", ".tsv"), documents=table_documents, only_named=True)
WET = Format(suffixes=(".wet",), documents=wet_documents)
FORMATS = {suffix: each for each in (TEXT, JSON_LINES, DUMP, TABLE, WRITTEN_TABLE, WET) for suffix in each.suffixes}
BAD_LINES = (
    *(*sources.BAD_LINES, NOT_JSON, NO_TEXT),
    *(*arrow_files.BAD_LINES, NO_ROW, NOT_TEXT, TOO_LONG),
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

    `documents`: with "file" a plain file is a document, and a blank line ends a paragraph; with "blank_line" a blank
    line ends a document, and a line is a sentence; with "paragraph_lines" likewise, but a line is a paragraph. In JSON
    Lines and tables, every line or row is a document in any case, and its text is read by the same rule. An article of
    a Wikipedia dump and a page of a WET file are documents in any case; a page's line is a paragraph. The documents to
    skip at the beginning are not counted, and not parsed where that is possible.
    """
    section_iterators = format_of(reader.source).documents(reader, documents)
    for _ in islice(section_iterators, skip_documents):
        reader.passed_over.clear()
    for document in section_iterators:
        yield from document
