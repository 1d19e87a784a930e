"""Makes documents, cut into sections, from a source's lines or articles.

Memory holds no more than a few sections, a JSON line or an article.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from bert_horovod.corpus.reading import arrow_files, sources
from bert_horovod.corpus.reading.arrow_files import ArrowReader
from bert_horovod.corpus.reading.sentences import split_sentences
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.wikipedia import Article, read_articles
from bert_horovod.storage.reading import shown

DOCUMENTS = ("file", "blank_line")
ENDLESS = "paragraphs with an endless sentence"  # names in SourceReader.passed_over
SECTION_BYTES = 64 << 10
CUT = f"sentences of more than {SECTION_BYTES >> 10} KiB, which were cut"
NOT_JSON = "lines that are not JSON objects"
NO_TEXT = "lines without text"
BAD_LINES = (NOT_JSON, NO_TEXT, *sources.BAD_LINES, *arrow_files.BAD_LINES)
_HELD_CHARACTERS = 4 * SECTION_BYTES  # a paragraph that is longer is cut while it is being read


@dataclass(frozen=True)
class Section:
    r"""Paragraphs of a document (or sentences) with "\n" between them; single spaces separate words."""

    text: str
    bytes: int  # of the text in UTF-8, at most 64 KiB
    ends_document: bool
    title: str = ""  # of the document, if it has one


Paragraph = tuple[int, str]  # number of its first line, its text


def read_sections(reader: SourceReader, documents: str, skip_documents: int = 0) -> Iterator[Section]:
    """Yield the sections of a source's documents; raises ReportedError for bad input.

    Every document has at least one section: an empty one if it has no text. reader.passed_over counts the input that is
    left out, and the sentences that are cut because they are longer than a section.

    Args:
        reader: the opened source.
        documents: "file": a plain file is a document, a blank line ends a paragraph. "blank_line": a blank line ends
            a document and a line is a sentence. In JSON Lines, every line is a document either way, and its text is
            read by the same rule. An article of a Wikipedia dump is a document either way.
        skip_documents: documents to skip at the beginning; they are not counted, and not parsed where that is possible.
    """
    readers: dict[str, Callable[..., Iterator[Iterator[Section]]]]
    readers = {"json": _json_documents, "wikipedia": _articles, "text": _text_documents, "arrow": _rows}
    section_iterators = readers[reader.source.kind](reader, documents)
    for _ in islice(section_iterators, skip_documents):
        reader.passed_over.clear()
    for document in section_iterators:
        yield from document


def utf8_bytes(text: str) -> int:
    """Length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _text_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    if documents == "file":
        yield _sections(_paragraphs(reader.lines()), documents, reader)
        return
    stream = _sentence_lines(reader.lines(lambda line: not line.strip()))
    for first in stream:
        if first:
            document = _until_blank(first, stream)
            yield _sections(document, documents, reader)
            counted = reader.passed_over.copy()
            for _ in document:  # if the caller skips the document: read to its end, but do not count its bad lines
                pass
            reader.passed_over = counted


def _json_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    for number, line in reader.lines():
        if line.strip():
            text_and_title = _json_text(line, number, reader)
            if text_and_title is not None:
                yield _record_sections(number, *text_and_title, documents, reader)


def _rows(reader: ArrowReader, documents: str) -> Iterator[Iterator[Section]]:
    for number, text, title in reader.rows():
        yield _record_sections(number, text, title, documents, reader)


def _record_sections(number: int, text: str, title: str, documents: str, reader: SourceReader) -> Iterator[Section]:
    inner = ((number, line) for line in text.split("\n"))
    paragraphs = _sentence_lines(inner) if documents == "blank_line" else _paragraphs(inner)
    yield from _sections((paragraph for paragraph in paragraphs if paragraph), documents, reader, title)


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
    text, title = record.get(name), record.get("title")
    if not isinstance(text, str):
        problem = f"a {type(text).__name__} in the field" if name in record else "no field"
        message = f'{where}: {problem} "{name}", its fields are {shown(list(record))}; {mend}'
        reader.pass_over(number, NO_TEXT, message)
        return None
    return _whole_characters(text), _whole_characters(title) if isinstance(title, str) else ""


def _whole_characters(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates (escaped halves of a pair), which are no characters."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _articles(reader: SourceReader, _documents: str) -> Iterator[Iterator[Section]]:
    for article in read_articles(reader):
        yield _article_sections(article, reader)


def _article_sections(article: Article, reader: SourceReader) -> Iterator[Section]:
    from bert_horovod.corpus.reading.wikitext import plain_text  # only a dump needs the parser

    paragraphs, removed = plain_text(article.wikitext, article.names)
    finite = [paragraph for paragraph in paragraphs if not _is_endless(paragraph)]
    reader.passed_over += removed + Counter({ENDLESS: len(paragraphs) - len(finite)})
    yield from _sections(((0, paragraph) for paragraph in finite), "file", reader, article.title)


def _is_endless(paragraph: str) -> bool:
    """Whether a sentence of a paragraph is too long for a section."""
    return utf8_bytes(paragraph) > SECTION_BYTES and any(
        utf8_bytes(sentence) > SECTION_BYTES for sentence in split_sentences(paragraph)
    )


def _paragraphs(lines: Iterator[Paragraph]) -> Iterator[Paragraph]:
    held: list[str] = []
    first, characters = 1, 0
    for number, line in lines:
        if line and not line.isspace():
            first = first if held else number
            held.append(line)
            characters += len(line)
        elif held:
            yield first, _single_spaces(" ".join(held))
            held, characters = [], 0
        if characters > _HELD_CHARACTERS:
            text = _single_spaces(" ".join(held))
            unfinished = split_sentences(text)[-1]
            if utf8_bytes(unfinished) > SECTION_BYTES:
                unfinished = ""  # an endless sentence: it is cut, and a new one begins
            if len(unfinished) < len(text):
                yield first, text[: len(text) - len(unfinished)].rstrip()
            first, held, characters = number, [unfinished] if unfinished else [], len(unfinished)
    if held:
        yield first, _single_spaces(" ".join(held))


def _sentence_lines(lines: Iterator[Paragraph]) -> Iterator[Paragraph | None]:
    """Yield every line that holds text, and None for a blank one."""
    for number, line in lines:
        words = _single_spaces(line)
        yield (number, words) if words else None


def _single_spaces(line: str) -> str:
    line = line.strip()
    # The plain space is the only printable white space, so this test is enough for most lines.
    return line if "  " not in line and line.isprintable() else " ".join(line.split())


def _until_blank(first: Paragraph, stream: Iterator[Paragraph | None]) -> Iterator[Paragraph]:
    yield first
    for paragraph in stream:
        if paragraph is None:
            return
        yield paragraph


def _sections(
    paragraphs: Iterator[Paragraph], documents: str, reader: SourceReader, title: str = ""
) -> Iterator[Section]:
    """Yield the sections of one document, at least one."""
    held: list[str] = []
    held_bytes = 0
    for _, paragraph in paragraphs:
        size = utf8_bytes(paragraph)
        pieces = [(paragraph, size)] if size <= SECTION_BYTES else _cut(paragraph, documents, reader)
        for piece, piece_bytes in pieces:
            if held and held_bytes + 1 + piece_bytes > SECTION_BYTES:
                yield Section("\n".join(held), held_bytes, False, title)
                held, held_bytes = [], 0
            held_bytes += piece_bytes + bool(held)
            held.append(piece)
    yield Section("\n".join(held), held_bytes, True, title)


def _cut(paragraph: str, documents: str, reader: SourceReader) -> Iterator[tuple[str, int]]:
    """Yield (piece, its bytes) of a long paragraph, cut at sentence ends; an endless sentence is cut too."""
    held: list[str] = []
    held_bytes = 0
    for sentence in [paragraph] if documents == "blank_line" else split_sentences(paragraph):
        size = utf8_bytes(sentence)
        if held and held_bytes + 1 + size > SECTION_BYTES:
            yield " ".join(held), held_bytes
            held, held_bytes = [], 0
        if size > SECTION_BYTES:
            reader.passed_over[CUT] += 1
            yield from ((part, utf8_bytes(part)) for part in _cut_endless(sentence))
            continue
        held_bytes += size + bool(held)
        held.append(sentence)
    if held:
        yield " ".join(held), held_bytes


def _cut_endless(sentence: str) -> Iterator[str]:
    """Yield pieces of at most SECTION_BYTES, cut between words where there are any."""
    encoded = sentence.encode()
    begin = 0
    while len(encoded) - begin > SECTION_BYTES:
        end = encoded.rfind(b" ", begin + 1, begin + SECTION_BYTES + 1)
        if end < 0:
            end = begin + SECTION_BYTES
            while encoded[end] & 0xC0 == 0x80:  # in the middle of a UTF-8 character
                end -= 1
        yield encoded[begin:end].decode()
        begin = end + (encoded[end] == ord(" "))
    yield encoded[begin:].decode()
