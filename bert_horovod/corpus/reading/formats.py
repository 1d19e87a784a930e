"""The formats of input files, by the suffixes of their names."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from bert_horovod.corpus.reading import arrow_files, json_lines, sources, table_rows, wet_files
from bert_horovod.corpus.reading.arrow_files import ArrowReader, row_documents
from bert_horovod.corpus.reading.compression import has_streams
from bert_horovod.corpus.reading.json_lines import json_documents
from bert_horovod.corpus.reading.sources import DUMP_SUFFIX, JSON_SUFFIXES, SourceFile, SourceReader, suffixes
from bert_horovod.corpus.reading.table_rows import table_documents
from bert_horovod.corpus.reading.text import Section, text_documents
from bert_horovod.corpus.reading.wet_files import wet_documents
from bert_horovod.corpus.reading.wikipedia import article_documents
from bert_horovod.errors import UserError


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
    *sources.BAD_LINES,
    *json_lines.BAD_LINES,
    *arrow_files.BAD_LINES,
    *table_rows.BAD_LINES,
    *wet_files.BAD_LINES,
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
