"""Documents, cut into sections, from paragraphs, records or lines of plain text, or sequences; memory holds a few."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile

from bert_horovod.corpus.reading.other_formats import refuse_content
from bert_horovod.corpus.reading.sentences import split_sentences
from bert_horovod.corpus.reading.sequences import fasta_records, refuse_fasta, sequence_parts, token_letters
from bert_horovod.corpus.reading.sources import SourceReader

DOCUMENTS = ("file", "blank_line", "paragraph_lines")
SECTION_BYTES = 64 << 10
CUT = f"sentences of more than {SECTION_BYTES >> 10} KiB, which were cut"  # a name in SourceReader.passed_over
_HELD_CHARACTERS = 4 * SECTION_BYTES  # a paragraph that is longer is cut while it is being read


@dataclass(frozen=True)
class Section:
    r"""Paragraphs of a document (or sentences) with "\n" between them; single spaces separate words."""

    text: str
    bytes: int  # of the text in UTF-8, at most 64 KiB
    ends_document: bool
    title: str = ""  # of the document, if it has one


def utf8_bytes(text: str) -> int:
    """Length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def text_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """The documents of plain text; see formats.read_sections."""
    if token_letters(documents):
        if reader.begin == 0:
            reader.look = refuse_content
        for name, sequence in fasta_records(reader):
            yield _sequence_sections(sequence, documents, f"{reader.source.path}, >{name}", name)
        return
    if reader.begin == 0:
        reader.look = _refuse_content
    if documents == "file":
        yield document_sections(_paragraphs(line for _, line in reader.lines()), documents, reader)
        return
    stream = (_single_spaces(line) for _, line in reader.lines(lambda line: not line.strip()))
    for first in stream:
        if first:
            document = chain([first], takewhile(bool, stream))
            yield document_sections(document, documents, reader)
            counted = reader.passed_over.copy()
            for _ in document:  # if the caller skips the document: read to its end, but do not count its bad lines
                pass
            reader.passed_over = counted


def _refuse_content(where: str, head: bytes) -> None:
    refuse_content(where, head)
    refuse_fasta(where, head)


def record_sections(number: int, text: str, title: str, documents: str, reader: SourceReader) -> Iterator[Section]:
    """The sections of the text of a record, which begins at line or row `number` of the source."""
    if token_letters(documents):
        yield from _sequence_sections([text.encode()], documents, reader.place(number), title)
        return
    lines = text.split("\n")
    paragraphs = _paragraphs(lines) if documents == "file" else filter(None, map(_single_spaces, lines))
    yield from document_sections(paragraphs, documents, reader, title)


def _sequence_sections(sequence: Iterable[bytes], documents: str, where: str, title: str) -> Iterator[Section]:
    """The sections of a sequence: each is a line, cut between tokens."""
    letters = token_letters(documents)
    for text, is_last in sequence_parts(sequence, SECTION_BYTES // letters * letters, where):
        yield Section(text, len(text), is_last, title)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    characters = 0
    for line in lines:
        if line and not line.isspace():
            held.append(line)
            characters += len(line)
        elif held:
            yield _single_spaces(" ".join(held))
            held, characters = [], 0
        if characters > _HELD_CHARACTERS:
            text = _single_spaces(" ".join(held))
            unfinished = split_sentences(text)[-1]
            if utf8_bytes(unfinished) > SECTION_BYTES:
                unfinished = ""  # an endless sentence: it is cut, and a new one begins
            if len(unfinished) < len(text):
                yield text[: len(text) - len(unfinished)].rstrip()
            held, characters = [unfinished] if unfinished else [], len(unfinished)
    if held:
        yield _single_spaces(" ".join(held))


def _single_spaces(line: str) -> str:
    line = line.strip()
    # The plain space is the only printable white space, so this test is enough for most lines.
    return line if "  " not in line and line.isprintable() else " ".join(line.split())


def document_sections(
    paragraphs: Iterable[str], documents: str, reader: SourceReader, title: str = ""
) -> Iterator[Section]:
    """Yield the sections of one document, at least one."""
    held: list[str] = []
    held_bytes = 0
    for paragraph in paragraphs:
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
