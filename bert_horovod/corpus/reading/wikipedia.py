"""The articles of a MediaWiki dump (pages-articles), streamed: no more than one page is held in memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from xml.etree import ElementTree

from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.errors import DamagedData, UserError

REDIRECTS = "redirects"
OTHER_NAMESPACES = "pages in other namespaces"
DISAMBIGUATION = "disambiguation pages"
MAXIMUM_PAGE_BYTES = 64 << 20
_EXPECTED = "expected a MediaWiki XML dump (pages-articles)"
_HEAD_BYTES = 1024  # a dump has its <mediawiki> tag within these
_DUMP_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<mediawiki[\s>]", re.DOTALL)
# A dump writes "<" in wikitext as "&lt;", so these tags always belong to the dump's own XML.
_PAGE_OR_END = re.compile(rb"<(?:page>|/mediawiki>)")
_PAGE_END = b"</page>"
_LONGEST_TAG = len(b"</mediawiki>")
_TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
_ARTICLE_NAMESPACE = re.compile(rb"<ns>\s*0\s*</ns>")
_TEMPLATE = re.compile(r"\{\{\s*([^{}|<\n]+)")
# Ends of names, and whole names, of templates that only disambiguation pages and lists of things of one name have.
_DISAMBIGUATION_ENDS = (
    "disambiguation", "disambiguation page", "disambiguation cleanup", "disambig", "set index article",
)  # fmt: skip
_DISAMBIGUATION_NAMES = frozenset((
    "dab", "disamb", "hndis", "hndab", "geodis", "geodab", "numberdis", "schooldis", "hospitaldis", "roaddis", "sia",
    "callsigndis", "letterdis", "mathdab", "stationdis", "shipindex", "mountainindex", "lakeindex", "roadindex",
    "aimai", "begriffsklärung", "desambiguación", "desambiguação", "disambigua", "dp", "förgrening", "homonymie",
    "ujednoznacznienie", "неоднозначность",
))  # fmt: skip


@dataclass(frozen=True)
class Article:
    """An article as the dump has it."""

    title: str
    wikitext: str


def read_articles(reader: SourceReader) -> Iterator[Article]:
    """Yield the articles of a dump, or of a part of one: pages in namespace 0 that are no redirects and no
    disambiguation pages.

    reader.passed_over counts the pages that are left out. Raises UserError if the file is not a dump, DamagedData if it
    is damaged or truncated.
    """
    for page in _pages(reader):
        if b"<redirect" in page:
            reader.passed_over[REDIRECTS] += 1
        elif not _ARTICLE_NAMESPACE.search(page):
            reader.passed_over[OTHER_NAMESPACES] += 1
        else:
            article = _article(page, reader)
            if _is_disambiguation(article):
                reader.passed_over[DISAMBIGUATION] += 1
            else:
                yield article


def _pages(reader: SourceReader) -> Iterator[bytes]:
    """Yield the pages that begin in the source or its part, each from <page> to </page>."""
    blocks = _checked_head(reader)
    held, offset = b"", 0  # bytes not used yet, and the byte of the text where they begin
    part_end: int | None = None  # the byte of the text where the part ends, once it is known
    unfinished = reader.begin == 0  # whether </mediawiki> is still to come
    for beyond, block in blocks:
        if beyond and part_end is None:
            part_end = offset + len(held)
        held += block
        at = 0
        while True:
            tag = _PAGE_OR_END.search(held, at)
            at = tag.start() if tag else max(at, len(held) - _LONGEST_TAG + 1)
            if part_end is not None and offset + at >= part_end:
                return
            if tag is None:
                break
            unfinished = tag.group() == b"<page>"
            end = held.find(_PAGE_END, at) + len(_PAGE_END) if unfinished else tag.end()
            if end < len(_PAGE_END):
                break
            if unfinished:
                yield held[at:end]
            at = end
        held, offset = held[at:], offset + at
        if len(held) > MAXIMUM_PAGE_BYTES:
            raise UserError(
                f"{_where(held, reader)}: longer than {MAXIMUM_PAGE_BYTES >> 20} MiB; {_EXPECTED}, which holds the "
                "newest revision of each page only"
            )
    if held.startswith(b"<page>"):
        raise DamagedData(
            f"{_where(held, reader)}: the dump ends in the middle of this page; expected a whole one: fetch it again"
        )
    if unfinished:
        raise DamagedData(f"{reader.source.path} ends without </mediawiki>; expected a whole dump: fetch it again")


def _checked_head(reader: SourceReader) -> Iterator[tuple[bool, bytes]]:
    """The reader's blocks; raises UserError if the source does not begin as a dump does."""
    blocks = reader.blocks()
    if reader.begin > 0:
        return blocks
    first, head = [], b""
    for beyond, block in blocks:
        first.append((beyond, block))
        head += block
        if len(head) >= _HEAD_BYTES:
            break
    if not _DUMP_HEAD.match(head):
        format = "XML, but not of MediaWiki" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else "not XML"
        raise UserError(f"{reader.source.path} is {format} (it begins with {head[:40]!r}); {_EXPECTED}")
    return chain(first, blocks)


def _article(page: bytes, reader: SourceReader) -> Article:
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise DamagedData(
            f"{_where(page, reader)}: not well-formed XML ({error}); {_EXPECTED}: fetch it again"
        ) from error
    return Article(root.findtext("title") or "", root.findtext("revision/text") or "")


def _is_disambiguation(article: Article) -> bool:
    names = {name.strip().lower().replace("_", " ") for name in _TEMPLATE.findall(article.wikitext)}
    return (
        article.title.endswith("(disambiguation)")
        or "__DISAMBIG__" in article.wikitext
        or not _DISAMBIGUATION_NAMES.isdisjoint(names)
        or any(name.endswith(_DISAMBIGUATION_ENDS) for name in names)
    )


def _where(page: bytes, reader: SourceReader) -> str:
    title = _TITLE.search(page[:4096])
    name = title.group(1).decode("utf-8", "replace") if title else "without a title"
    return f"{reader.source.path}, page {name!r}"
