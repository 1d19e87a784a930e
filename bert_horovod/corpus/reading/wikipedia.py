"""The articles of a MediaWiki dump, streamed: no more than two revisions of one page are held in memory."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from bert_horovod.corpus.reading.sentences import split_sentences
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.text import SECTION_BYTES, Section, document_sections, utf8_bytes
from bert_horovod.corpus.reading.wikitext import DISAMBIGUATION_NAMES, WikiNames, plain_text
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.wording import counted

REDIRECTS = "redirects"
OTHER_NAMESPACES = "pages in other namespaces"
DISAMBIGUATION = "disambiguation pages"
MAXIMUM_PAGE_BYTES = 64 << 20
OLDER_REVISIONS = "older revisions of articles"
ENDLESS = "paragraphs with an endless sentence"
NO_TEXT = "articles whose text the dump lacks"
_EXPECTED = "expected a MediaWiki XML dump with the pages' text (pages-articles)"
_HEAD_BYTES = 4 << 20  # more than a dump has before its first page
_FIRST_PAGES = 10  # a dump without text in so many first articles has no texts at all
_DUMP_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<mediawiki[\s>]", re.DOTALL)
# A dump writes "<" in wikitext as "&lt;", so these tags always belong to the dump's own XML.
_FIRST_ITEM = re.compile(rb"<(?:page|logitem|/mediawiki)>")
_VERSION = re.compile(rb"<mediawiki\s[^>]*/export-([0-9.]+)/")
_SITE = re.compile(rb"<siteinfo>.*?</siteinfo>", re.DOTALL)
_TAG = re.compile(rb"<(?:/?page|/?revision|/mediawiki)>")
_LONGEST_TAG = len(b"</mediawiki>")
_TIMESTAMP = re.compile(rb"<timestamp>\s*(.*?)\s*</timestamp>", re.DOTALL)
_REVISION_ID = re.compile(rb"<id>\s*(\d+)\s*</id>")
_TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_TEMPLATE = re.compile(r"\{\{\s*([^{}|<\n]+)")
# Ends of names of templates that only disambiguation pages and lists of things of one name have.
_DISAMBIGUATION_ENDS = (
    "disambiguation", "disambiguation page", "disambiguation cleanup", "disambig", "set index article",
)  # fmt: skip


@dataclass(frozen=True)
class Article:
    """An article as the dump has it, and the names of its wiki."""

    title: str
    wikitext: str
    names: WikiNames


def read_articles(reader: SourceReader) -> Iterator[Article]:
    """Yield the articles of a dump, or of a part of one, each as its newest revision has it.

    Articles are pages in namespace 0 that are no redirects and no disambiguation pages. reader.passed_over counts the
    pages and revisions that are left out. Raises UserError if the file is not a dump, or one without text or
    namespaces, DamagedData if it is damaged or truncated.
    """
    head = _checked_head(reader)
    names = _wiki_names(head, reader)
    lacking = with_text = 0
    for page, revisions in _pages(reader):
        namespace = _NAMESPACE.search(page)
        if namespace is None:
            version = _VERSION.search(head)
            raise UserError(
                f"{_where(page, reader)}: no <ns>: a dump of the old format"
                f"{' export-' + version[1].decode() if version else ''}, which does not tell articles from pages of "
                f"other namespaces; {_EXPECTED}, of a newer MediaWiki"
            )
        if b"<redirect" in page:
            reader.passed_over[REDIRECTS] += 1
            continue
        if int(namespace[1]):
            reader.passed_over[OTHER_NAMESPACES] += 1
            continue
        article = _article(page, names, reader)
        if article is None:
            lacking += 1
            reader.passed_over[NO_TEXT] += 1
            if lacking == _FIRST_PAGES and not with_text:
                break
            continue
        with_text += 1
        if revisions > 1:
            reader.passed_over[OLDER_REVISIONS] += revisions - 1
        if _is_disambiguation(article):
            reader.passed_over[DISAMBIGUATION] += 1
        else:
            yield article
    if lacking and not with_text and (lacking == _FIRST_PAGES or reader.begin == 0):
        raise UserError(
            f"{reader.source.path} is a dump without text (a stub dump): its first {counted(lacking, 'article')} "
            f"{'has' if lacking == 1 else 'have'} none; {_EXPECTED}"
        )


class _Page:
    """The page that is being read: what stands before its first revision, and the newest of its revisions so far."""

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.revisions = 0
        self._newest, self._key = b"", (b"", -1)

    def take(self, revision: bytes) -> None:
        """Keep the revision if it is the newest by timestamp; of equal ones, the one with the largest number."""
        timestamp, number = _TIMESTAMP.search(revision), _REVISION_ID.search(revision)
        key = (timestamp[1] if timestamp else b"", int(number[1]) if number else -1)
        self.revisions += 1
        if key >= self._key:
            self._newest, self._key = revision, key

    def text(self, rest: bytes) -> bytes:
        """The page with its newest revision alone; `rest`: what follows its last revision."""
        return b"".join((self.head or b"", self._newest, rest))


def _pages(reader: SourceReader) -> Iterator[tuple[bytes, int]]:
    """Yield the pages that begin in the source or its part, with the newest revision, and the number of revisions."""
    held, offset = b"", 0  # bytes not used yet, and the byte of the text where they begin
    searched = 0  # bytes of them in which no further tag begins
    part_end: int | None = None  # the byte of the text where the part ends, once it is known
    unfinished = reader.begin == 0  # whether </mediawiki> is still to come
    page: _Page | None = None
    for beyond, block in reader.blocks():
        if beyond and part_end is None:
            part_end = offset + len(held)
        held += block
        at = 0  # bytes before this one were used
        for tag in _TAG.finditer(held, searched):
            name, searched = tag.group(), tag.end()
            if page is None:
                at = tag.start() if name == b"<page>" else tag.end()
                if name == b"<page>":
                    if part_end is not None and offset + at >= part_end:
                        return
                    page = _Page()
                unfinished = name == b"<page>" or (unfinished and name != b"</mediawiki>")
            elif name == b"<revision>":
                if page.head is None:
                    page.head = held[at : tag.start()]
                at = tag.start()
            elif name == b"</revision>":
                page.take(held[at : tag.end()])
                at = tag.end()
            elif name == b"</page>":
                yield page.text(held[at : tag.end()]), page.revisions
                page, at = None, tag.end()
            else:  # another page, or the dump's end
                raise _cut_page(page, held[at:], reader)
        if page is None:
            at = max(at, len(held) - _LONGEST_TAG + 1)
            if part_end is not None and offset + at >= part_end:
                return
        searched = max(searched, len(held) - _LONGEST_TAG + 1) - at
        held, offset = held[at:], offset + at
        if len(held) > MAXIMUM_PAGE_BYTES:
            raise UserError(
                f"{_where((page and page.head) or held, reader)}: longer than {MAXIMUM_PAGE_BYTES >> 20} MiB; "
                f"{_EXPECTED}, in which no page is so long"
            )
    if page is not None:
        raise _cut_page(page, held, reader)
    if unfinished:
        raise DamagedData(f"{reader.source.path} ends without </mediawiki>; expected a whole dump: fetch it again")


def _cut_page(page: _Page, held: bytes, reader: SourceReader) -> DamagedData:
    return DamagedData(
        f"{_where(page.head or held, reader)}: the dump ends in the middle of this page; expected a whole one: fetch "
        "it again"
    )


def _checked_head(reader: SourceReader) -> bytes:
    """The beginning of the whole source up to its first page, read anew; raises UserError if it is no dump of pages."""
    path, head = reader.source.path, b""
    with SourceReader(reader.source) as whole:
        for _, block in whole.blocks():
            head += block
            if (first := _FIRST_ITEM.search(head)) or len(head) >= _HEAD_BYTES:
                break
        else:
            first = None
    if not _DUMP_HEAD.match(head):
        format = "XML, but not of MediaWiki" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else "not XML"
        raise UserError(f"{path} is {format} (it begins with {head[:40]!r}); {_EXPECTED}")
    if first and first.group() == b"<logitem>":
        raise UserError(f"{path} is a dump of a wiki's log (pages-logging), which has no pages; {_EXPECTED}")
    return head[: first.start()] if first else head


def _wiki_names(head: bytes, reader: SourceReader) -> WikiNames:
    """The names of the wiki's namespaces, as the dump's <siteinfo> gives them; without it, none."""
    site = _SITE.search(head)
    if site is None:
        return WikiNames()
    try:
        namespaces = ElementTree.fromstring(site.group()).iterfind("namespaces/namespace")
        return WikiNames({namespace.get("key", ""): namespace.text or "" for namespace in namespaces})
    except ElementTree.ParseError as error:
        raise DamagedData(
            f"{reader.source.path}: <siteinfo> is not well-formed XML ({error}); {_EXPECTED}: fetch it again"
        ) from error


def _article(page: bytes, names: WikiNames, reader: SourceReader) -> Article | None:
    """The article of a page; None: the dump lacks its text."""
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise DamagedData(
            f"{_where(page, reader)}: not well-formed XML ({error}); {_EXPECTED}: fetch it again"
        ) from error
    text = root.find("revision/text")
    if text is None or (not text.text and _is_elsewhere(text.attrib)):
        return None
    return Article(root.findtext("title") or "", text.text or "", names)


def _is_elsewhere(attributes: dict[str, str]) -> bool:
    """Whether an empty <text> stands for a text that the dump does not hold."""
    if "bytes" in attributes and "deleted" not in attributes:
        return attributes["bytes"] != "0"
    return not attributes.keys().isdisjoint(("id", "location", "deleted"))


def _is_disambiguation(article: Article) -> bool:
    names = {name.strip().lower().replace("_", " ") for name in _TEMPLATE.findall(article.wikitext)}
    return (
        article.title.endswith("(disambiguation)")
        or "__DISAMBIG__" in article.wikitext
        or not DISAMBIGUATION_NAMES.isdisjoint(names)
        or any(name.endswith(_DISAMBIGUATION_ENDS) for name in names)
    )


def _where(page: bytes, reader: SourceReader) -> str:
    title = _TITLE.search(page[:4096])
    name = title.group(1).decode("utf-8", "replace") if title else "without a title"
    return f"{reader.source.path}, page {name!r}"


def article_documents(reader: SourceReader, _documents: str) -> Iterator[Iterator[Section]]:
    """A document an article; see formats.read_sections."""
    for article in read_articles(reader):
        yield _article_sections(article, reader)


def _article_sections(article: Article, reader: SourceReader) -> Iterator[Section]:
    paragraphs, removed = plain_text(article.wikitext, article.names)
    finite = [paragraph for paragraph in paragraphs if not _is_endless(paragraph)]
    reader.passed_over += removed + Counter({ENDLESS: len(paragraphs) - len(finite)})
    yield from document_sections(finite, "file", reader, article.title)


def _is_endless(paragraph: str) -> bool:
    """Whether a sentence of a paragraph is too long for a section."""
    return utf8_bytes(paragraph) > SECTION_BYTES and any(
        utf8_bytes(sentence) > SECTION_BYTES for sentence in split_sentences(paragraph)
    )
