"""WET files, which have the texts that Common Crawl extracts from web pages: a document a page.

Such a file is a sequence of WARC records (ISO 28500): a version, named fields, an empty line, a block of Content-Length
bytes, and two line ends. Each record may be a gzip member of its own.
"""

from collections.abc import Iterator

from bert_horovod.corpus.reading.sources import (
    MAXIMUM_LINE_BYTES,
    RECORD_NOT_TEXT,
    RECORD_TOO_LONG,
    SourceReader,
    text_of,
)
from bert_horovod.corpus.reading.text import Section, record_sections
from bert_horovod.errors import DamagedData
from bert_horovod.storage.reading import shown

NOT_EXTRACTED = "records that are not extracted text"  # a name in SourceReader.passed_over
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
        if not (length.isascii() and length.isdecimal() and len(length) < 20):
            raise DamagedData(f"{where}: Content-Length is {shown(length)}, expected bytes: fetch the file again")
        is_long = int(length) > MAXIMUM_LINE_BYTES
        block = blocks.take(int(length), where, keep=not is_long)
        kind, content = fields.get("warc-type", "").lower(), fields.get("content-type", "text/plain").lower()
        if kind != "conversion" or not content.startswith("text/plain"):
            if kind != "warcinfo":  # says how the file was made
                reader.passed_over[NOT_EXTRACTED] += 1
        elif is_long:
            reader.pass_over(number, RECORD_TOO_LONG, f"{where}: {int(length):,} bytes; expected a page: leave it out")
        elif (text := text_of(block, 1)) is None:
            reader.pass_over(
                number, RECORD_NOT_TEXT, f"{where}: not UTF-8 text; expected what Common Crawl writes: mend it"
            )
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
