"""Documents of sources and of their pieces, as tests compare them; toy dumps in MediaWiki's format."""

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader


def source_of(path: Path, data: bytes | None = None) -> SourceFile:
    """A file as a source; `data` is written into it before."""
    if data is not None:
        path.write_bytes(data)
    [source] = find_sources([str(path)])
    return source


def documents(reader: SourceReader, mode: str = "file", skip: int = 0) -> list[tuple[str, str]]:
    """Title and text of each document that a reader gives."""
    found, held = [], []
    with reader:
        for section in read_sections(reader, mode, skip):
            held.append(section.text)
            if section.ends_document:
                found.append((section.title, "\n".join(held)))
                held = []
    assert not held
    return found


def texts_of(pieces: Iterable[Piece], mode: str = "file") -> list[str]:
    """The texts of all sections of pieces."""
    found = []
    for piece in pieces:
        with piece_reader(piece) as reader:
            found += [section.text for section in read_sections(reader, mode)]
    return found


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <namespaces><namespace key="0" case="first-letter" /><namespace key="1">Talk</namespace></namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title, wikitext, namespace=0, redirect=""):
    """A page element."""
    redirect = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>12</id>
{redirect}    <revision>
      <id>34</id>
      <text bytes="{len(wikitext)}" xml:space="preserve">{escape(wikitext)}</text>
    </revision>
  </page>
"""


def dump(*pages):
    """A whole dump, as bytes."""
    return (HEAD + "".join(pages) + TAIL).encode()
