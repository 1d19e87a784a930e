"""From a source's lines to documents, cut into sections; nothing longer than a few sections is held in memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from bert_horovod.corpus.sentences import split_sentences
from bert_horovod.corpus.sources import SourceReader
from bert_horovod.errors import UserError

DOCUMENTS = ("file", "blank_line")
SECTION_BYTES = 64 << 10
_HELD_CHARACTERS = 4 * SECTION_BYTES  # a paragraph that is longer is cut while it is being read


@dataclass(frozen=True)
class Section:
    """A piece of a document: paragraphs (or sentences, one a line) apart by "\\n", words by single spaces."""

    text: str
    bytes: int  # of the text in UTF-8, at most 64 KiB
    ends_document: bool
    title: str = ""


Paragraph = tuple[int, str]  # the line that it begins in, its text


def read_sections(reader: SourceReader, documents: str, skip_documents: int = 0) -> Iterator[Section]:
    """Yield the sections of a source's documents; raises UserError for input that is not what it should be.

    Args:
        reader: the opened source.
        documents: "file": a plain file is a document, a blank line ends a paragraph. "blank_line": a blank line ends
            a document and a line is a sentence. In JSON Lines, every line is a document either way, and its text is
            read by the same rule.
    """
    lines = reader.lines()
    if reader.source.is_json:
        for number, text in _json_texts(lines, reader):
            inner = ((number, line) for line in text.split("\n"))
            paragraphs = _sentence_lines(inner) if documents == "blank_line" else _paragraphs(inner, reader)
            yield from _sections((paragraph for paragraph in paragraphs if paragraph), documents, reader)
    elif documents == "blank_line":
        stream = _sentence_lines(lines)
        while (first := next(stream, False)) is not False:
            if first:
                yield from _sections(_until_blank(first, stream), documents, reader)
    else:
        yield from _sections(_paragraphs(lines, reader), documents, reader)


def utf8_bytes(text: str) -> int:
    """Length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _json_texts(lines: Iterator[Paragraph], reader: SourceReader) -> Iterator[Paragraph]:
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{reader.source.path}, line {number}"
        mend = 'expected one JSON object a line, with the text in a string field "text"'
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON ({error}); {mend}") from error
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            if not isinstance(value, dict):
                found = f"a {type(value).__name__} instead of an object"
            else:
                found = 'no field "text"' if "text" not in value else f'a {type(text).__name__} in the field "text"'
            raise UserError(f"{where}: {found}; {mend}")
        if not text.isascii():  # an escaped half of a surrogate pair is no character
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield number, text


def _paragraphs(lines: Iterator[Paragraph], reader: SourceReader) -> Iterator[Paragraph]:
    first, held, characters = 1, [], 0
    for number, line in lines:
        words = _single_spaces(line)
        if words:
            first = first if held else number
            held.append(words)
            characters += len(words)
        elif held:
            yield first, " ".join(held)
            held, characters = [], 0
        if characters > _HELD_CHARACTERS:
            text = " ".join(held)
            rest = split_sentences(text)[-1]
            if len(rest) < len(text):
                yield first, text[: len(text) - len(rest)].rstrip()
            first, held, characters = number, [rest], len(rest)
            _refuse_endless(rest, first, reader)
    if held:
        yield first, " ".join(held)


def _sentence_lines(lines: Iterator[Paragraph]) -> Iterator[Paragraph | None]:
    """Yield every line that holds text, and None for a blank one."""
    for number, line in lines:
        words = _single_spaces(line)
        yield (number, words) if words else None


def _single_spaces(line: str) -> str:
    line = line.strip()
    # Of all white space only the plain space is printable; most lines need no more than this look.
    return line if line.isprintable() and "  " not in line else " ".join(line.split())


def _until_blank(first: Paragraph, stream: Iterator[Paragraph | None]) -> Iterator[Paragraph]:
    yield first
    for paragraph in stream:
        if paragraph is None:
            return
        yield paragraph


def _sections(paragraphs: Iterator[Paragraph], documents: str, reader: SourceReader) -> Iterator[Section]:
    """Yield the sections of one document."""
    held, held_bytes = [], 0
    for number, paragraph in paragraphs:
        size = utf8_bytes(paragraph)
        pieces = [(paragraph, size)] if size <= SECTION_BYTES else _cut(paragraph, number, documents, reader)
        for piece, piece_bytes in pieces:
            if held and held_bytes + 1 + piece_bytes > SECTION_BYTES:
                yield Section("\n".join(held), held_bytes, False)
                held, held_bytes = [], 0
            held_bytes += piece_bytes + bool(held)
            held.append(piece)
    if held:
        yield Section("\n".join(held), held_bytes, True)


def _cut(paragraph: str, number: int, documents: str, reader: SourceReader) -> Iterator[tuple[str, int]]:
    """Yield pieces of a long paragraph, cut at sentence ends, with their bytes."""
    held, held_bytes = [], 0
    for sentence in [paragraph] if documents == "blank_line" else split_sentences(paragraph):
        size = _refuse_endless(sentence, number, reader)
        if held and held_bytes + 1 + size > SECTION_BYTES:
            yield " ".join(held), held_bytes
            held, held_bytes = [], 0
        held_bytes += size + bool(held)
        held.append(sentence)
    if held:
        yield " ".join(held), held_bytes


def _refuse_endless(sentence: str, number: int, reader: SourceReader) -> int:
    size = utf8_bytes(sentence)
    if size > SECTION_BYTES:
        raise UserError(
            f"{reader.source.path}, line {number}: a sentence of more than {SECTION_BYTES >> 10} KiB, "
            f"beginning with {sentence[:40]!r}; expected text with sentences (. ! ?) or "
            "blank lines: mend or leave out this file"
        )
    return size
