"""The formats of input files, by the suffixes of their names, and JSON Lines."""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bert_horovod.corpus.reading.compression import has_streams
from bert_horovod.corpus.reading.sequences import token_letters
from bert_horovod.corpus.reading.sources import (
    DUMP_SUFFIX,
    JSON_SUFFIXES,
    NO_TEXT,
    NOT_JSON,
    SourceFile,
    SourceReader,
    suffixes,
)
from bert_horovod.corpus.reading.text import Section, record_sections, text_documents
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class Format:
    """How files of a format are read."""

    suffixes: tuple[str, ...]  # of the files' names, without a compression's
    # Yields the sections of each document of a SourceReader, or of what `reader` opens, by a rule of read_sections
    documents: Callable[..., Iterator[Iterator[Section]]]
    # Whether a source can be read in pieces (pieces.py), under this rule of documents
    may_be_cut: Callable[[SourceFile, str], bool] = lambda _source, _documents: False
    # Opens a source, or a piece of it, if it is not read as lines; its arguments are those of arrow_files.ArrowReader
    reader: Callable[..., SourceReader] | None = None
    may_be_compressed: bool = True  # whether files have a compression's suffix too; else such a file is text
    only_named: bool = False  # in a directory such files are passed over: they are read if named, or by a glob


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


def _named(module: str, function: str) -> Callable[..., Any]:
    """A function of corpus/reading by its name: its module is read where there is such a file alone."""

    def call(*arguments: Any, **others: Any) -> Any:
        found = importlib.import_module(f"bert_horovod.corpus.reading.{module}")
        return getattr(found, function)(*arguments, **others)

    return call


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
    documents=_named("wikipedia", "article_documents"),
    may_be_cut=lambda source, _: has_streams(source.open) if source.compression == ".bz2" else not source.compression,
)
TABLE = Format(
    suffixes=(".parquet", ".arrow"),
    documents=_named("arrow_files", "row_documents"),
    may_be_cut=lambda _source, _documents: True,
    reader=_named("arrow_files", "ArrowReader"),
    may_be_compressed=False,
)
WRITTEN_TABLE = Format(
    suffixes=(".csv", ".tsv"), documents=_named("written_tables", "table_documents"), only_named=True
)
WET = Format(suffixes=(".wet",), documents=_named("web_pages", "wet_documents"))
FORMATS = {suffix: each for each in (TEXT, JSON_LINES, DUMP, TABLE, WRITTEN_TABLE, WET) for suffix in each.suffixes}


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
    a Wikipedia dump and a page of a WET file are documents in any case; a page's line is a paragraph. With what
    sequences.parse_split gives, a plain file is FASTA, and a document is a sequence: lines of upper-case letters. The
    documents to skip at the beginning are not counted, and not parsed where that is possible.
    """
    form = format_of(reader.source)
    if form in (DUMP, WET) and token_letters(documents):
        raise UserError(
            f"{reader.source.path}: its texts are prose; expected FASTA, JSON Lines or a table with --split"
        )
    section_iterators = form.documents(reader, documents)
    for _ in islice(section_iterators, skip_documents):
        reader.passed_over.clear()
    for document in section_iterators:
        yield from document
