"""Wikitext to plain paragraphs.

One linear scan removes blocks without prose (templates, tables, references, formulas, comments, files, categories),
nested ones too. Then headings and lists are recognised line by line, and simple links by a pattern. mwparserfromhell
parses the markup that is left in a paragraph. The scan comes first because the parser, which builds an object for every
node, is slow. wiki_names.toml has the names by which markup is known in each language.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import unescape
from pathlib import Path
from unicodedata import normalize

from bert_horovod.recipe.fields import read_toml

FILE_NAMESPACES = ("-2", "6")  # Media, File
CATEGORY_NAMESPACE = "14"

_NAMES = read_toml(Path(__file__).with_name("wiki_names.toml"), "the names of")
# A link with such an end is to a file, whatever the name of the namespace: wikis have aliases that no dump names.
_FILE_ENDS = "jpe?g|png|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|webm|mp[34]|midi?|wav|flac"
# Between the parts of a heading such as "Notes et références" or "脚注・参考文献".
_AND = re.compile(
    r"\s*[,;/&+・、，；]\s*|\s+(?:and/or|en/of|und/oder|and|or|und|oder|et|ou|y|e|ed|o|en|of|och|og|i|oraz|и|или|та|й|і|а|a|è|และ|và|ve|veya|"
    r"ja|és|dan|și|şi|και|eta|या|और|و|및|와|과)\s+|(?<=[ぁ-ヿ一-鿿])[及和与與](?:び)?(?=[ぁ-ヿ一-鿿])|(?<=[가-힣])[와과]\s+|"
    r"\s+و(?=\w)|\s+ו(?=\w)"
)


def _folded(name: str) -> str:
    """A name for comparison: without case (also of the Turkish i), and with single spaces."""
    return " ".join(normalize("NFC", name).casefold().replace("i\u0307", "i").replace("ı", "i").split())


def _headings(text: str) -> frozenset[str]:
    return frozenset(_folded(name) for name in text.split(", "))


DISAMBIGUATION_NAMES = frozenset(_NAMES["disambiguation"].split(", "))
_SECTION_NAMES = frozenset().union(*map(_headings, _NAMES["sections_without_prose"].values()))


def is_without_prose(heading: str) -> bool:
    """Whether a heading's section holds no prose: references, links, books, in any language of the table."""
    name = _folded(heading.strip(" \t:.…'\""))
    return name in _SECTION_NAMES or all(part in _SECTION_NAMES for part in _AND.split(name))


@dataclass(frozen=True)
class WikiNames:
    """How one wiki names files and categories."""

    namespaces: Mapping[str, str] = field(default_factory=dict)  # the names that its dump gives, by key ("6": "File")

    @cached_property
    def hidden_link(self) -> re.Pattern[str]:
        """Matches a link that is never shown as text; the group that matched is "file", "category" or "language"."""
        languages = _any_of(_NAMES["languages"].split())
        blank = "[\\s_\u200e\u200f\u202a-\u202e]*"  # marks of direction are no part of a title
        return re.compile(
            rf"\[\[{blank}(?:(?P<file>(?:{self._files}){blank}:|[^\W\d_][^\[\]{{}}|<>:\n]*:[^\[\]{{}}|<>\n]*"
            rf"\.(?:{_FILE_ENDS}){blank}(?:\||\]\]))|(?P<category>(?:{self._categories}){blank}:)|"
            rf"(?P<language>(?-i:{languages}):[^|\[\]]*\]\]))",
            re.IGNORECASE,
        )

    @cached_property
    def shown_name(self) -> re.Pattern[str]:
        """Matches the name of a file or a category in what should be text."""
        names = frozenset(("file", "image", "category")) | self._own("6", CATEGORY_NAMESPACE)
        return re.compile(rf"(?<!\w)(?:{_any_of(names)}):\S", re.IGNORECASE)

    @property
    def _files(self) -> str:
        return _any_of(frozenset(_NAMES["file_names"].split()) | self._own(*FILE_NAMESPACES))

    @property
    def _categories(self) -> str:
        return _any_of(frozenset(_NAMES["category_names"].split()) | self._own(CATEGORY_NAMESPACE))

    def _own(self, *keys: str) -> frozenset[str]:
        return frozenset(name for key in keys if (name := self.namespaces.get(key, "").strip()))


def _any_of(names: Iterable[str]) -> str:
    """A pattern for any of these names, the longest first; a blank in a name is also written as "_"."""
    patterns = {r"[\s_]+".join(map(re.escape, re.split(r"[\s_]+", name.strip()))) for name in names}
    return "|".join(sorted(patterns, key=lambda pattern: (-len(pattern), pattern)))


# What is removed, as a store's report counts it.
MARKUP_LEFT = "paragraphs with markup left"
SECTIONS = "sections without prose (references, links, ...)"
_BLOCKS = {
    "file": "links to files, with their captions",
    "category": "links to categories",
    "language": "links to other languages",
    "template": "templates",
    "table": "tables",
    "ref": "references",
    "tag": "formulas, galleries and the like",
}
_ANY_WIKI = WikiNames()
_NO_PROSE_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|score|source|syntaxhighlight|pre|imagemap|graph|mapframe|maplink|"
    "hiero|templatestyles|templatedata|includeonly|section|inputbox|categorytree|indicator"
)
# Tokens at which the scan stops. A table begins and ends only at the beginning of a line, and "|}}" ends a template.
_TOKEN = re.compile(
    rf"(?P<comment><!--)|<(?P<tag>{_NO_PROSE_TAGS}|nowiki)\b[^<>]*>|(?P<template>\{{\{{+)|(?P<template_end>\}}\}}+)|"
    r"(?P<link>\[\[)|(?P<link_end>\]\]+)|^[ \t:*#]*(?P<table>\{\|)|^[ \t:*#]*(?P<table_end>\|\})(?!\})",
    re.MULTILINE | re.IGNORECASE,
)
_TAG_ENDS = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in (*_NO_PROSE_TAGS.split("|"), "nowiki")}
# A link without markup inside needs no parser; most links are such.
_SIMPLE_LINK = re.compile(r"(?<!\[)\[\[(?:[^\[\]{}|<>\n]+\|)?([^\[\]{}|<>\n]+)\]\](?!\])")
_BLOCK_TAG = re.compile(
    r"</?(?:div|p|center|blockquote|poem|table|tr|td|th|caption|tbody|ul|ol|li|dl|dt|dd|h[1-6]|hr)\b[^<>]*>[ \t]*",
    re.IGNORECASE,
)
_BREAK_TAG = re.compile(r"(^)?(?:<br\b[^<>]*>[ \t]*)+", re.IGNORECASE | re.MULTILINE)
_SPECIAL = re.compile(r"[^\w\s]")
_INLINE_TAG = re.compile(
    r"</?(?:span|small|big|sub|sup|b|i|u|s|em|strong|cite|code|tt|kbd|samp|var|abbr|bdi|bdo|font|q|del|ins|strike|mark|"
    r"dfn|time|wbr|nobr|noinclude|onlyinclude|rp|rt|rb|ruby)\b[^<>]*>",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(={1,6})(.+?)\1")
_LINE_MARKS = ("", " ", "\t", "*", "#", ":", ";", "|", "!")  # first characters of lines that end a paragraph
_QUOTES = re.compile("'{2,}")
_MAGIC_WORD = re.compile(r"__(?!_)\w{3,60}?(?<!_)__")
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|\w+);", re.IGNORECASE)
# Left behind by removed markup: empty brackets, a space before a comma.
_EMPTY_BRACKETS = re.compile(r" ?[(\[](?:[ ,;:]|(?:or|and)\b)*[)\]]")
_OPEN_BRACKET = re.compile(r"\([ ,;:]+")
_SPACE_BEFORE = re.compile(r" (?=[,;:.)](?: |$))")
_RESIDUE = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|-|==|\[(?:https?:)?//|</?[a-z][^<>]*>|<(?:ref|!--)|\|\s*thumb|thumb\s*\||"
    r"^[|!]|\|\||!!",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:\S+ ){4}.*[.!?…。！？][\"'”’»›)\]」』]*", re.DOTALL)


def plain_text(wikitext: str, names: WikiNames = _ANY_WIKI) -> tuple[list[str], Counter[str]]:
    """The prose of an article: (paragraphs without markup, how much was removed, by kind).

    A list item is a paragraph if it is a sentence of at least five words; headings, indented code, and sections such
    as "References" are left out. Single spaces separate words. A paragraph is removed if markup is left in it. A block
    inside a removed block counts with it.
    """
    paragraphs: list[str] = []
    removed: Counter[str] = Counter()
    text = _BREAK_TAG.sub(lambda tag: " " if tag[1] is None else "", _without_blocks(wikitext, names, removed))
    text = _QUOTES.sub("", _MAGIC_WORD.sub(_without_capitals, _INLINE_TAG.sub("", _BLOCK_TAG.sub("\n\n", text))))
    for markup, is_item in _paragraphs(text, removed):
        paragraph = _plain(markup)
        if _RESIDUE.search(paragraph) or names.shown_name.search(paragraph):
            removed[MARKUP_LEFT] += 1
        elif any(map(str.isalpha, paragraph)) and (not is_item or _SENTENCE.fullmatch(paragraph)):
            paragraphs.append(paragraph)
    return paragraphs, removed


def _without_capitals(word: re.Match) -> str:
    """Nothing in place of a magic word, such as __NOTOC__ or __목차__; other words, such as __init__, stay."""
    return "" if word[0] == word[0].upper() else word[0]


def _without_blocks(wikitext: str, names: WikiNames, removed: Counter[str]) -> str:
    """The text without the blocks that the scan finds."""
    pieces, begin = [], 0
    for start, end, replacement, kind in _Scan(wikitext, names).found():
        if start >= begin:
            pieces += [piece for piece in (wikitext[begin:start], replacement) if piece]
            if kind in _BLOCKS:
                removed[_BLOCKS[kind]] += 1
        if end > begin:
            begin = end
            if not pieces or pieces[-1].endswith("\n"):  # else the rest would look like an indented line
                while wikitext[begin : begin + 1] in (" ", "\t"):
                    begin += 1
    pieces.append(wikitext[begin:])
    return "".join(pieces)


class _Scan:
    """One pass over a text, in time proportional to its length even if its markup is broken."""

    def __init__(self, text: str, names: WikiNames):
        self._text, self._hidden_link = text, names.hidden_link
        self._found: list[tuple[int, int, str, str]] = []
        self._open: list[tuple[str, int, int]] = []  # kind, begin, braces still to be closed
        self._kinds: Counter[str] = Counter()  # how many of each kind are open
        self._endless: set[str] = set()  # tags without an end tag in the rest of the text

    def found(self) -> list[tuple[int, int, str, str]]:
        """The blocks to remove, sorted by begin, maybe nested: (begin, end, text in their place, kind)."""
        at = 0
        while token := _TOKEN.search(self._text, at):
            kind = token.lastgroup or ""
            begin, at = token.start(kind), token.end()
            if kind == "comment":
                end = self._text.find("-->", at)
                at = len(self._text) if end < 0 else end + 3
                self._found.append((begin, at, "", kind))
            elif kind == "tag":
                at = self._take_tag(token)
            elif kind == "link_end":
                self._close_links(begin, at)
            elif kind in ("template_end", "table_end"):
                self._close(kind.removesuffix("_end"), at - begin, at)
            else:
                self._push(kind, begin, at - begin)
        return sorted(self._found)

    def _take_tag(self, tag: re.Match) -> int:
        """Add a tag with its content to the blocks; returns where the scan goes on. A tag without an end stays."""
        name, end = tag["tag"].lower(), tag.end()
        content = ""
        if not tag.group().endswith("/>"):
            closing = None if name in self._endless else _TAG_ENDS[name].search(self._text, end)
            if closing is None:
                self._endless.add(name)
                return end
            content, end = self._text[end : closing.start()], closing.end()
        kind = {"ref": "ref", "references": "", "nowiki": "", "templatestyles": "", "section": ""}.get(name, "tag")
        self._found.append((tag.start(), end, _literal(content) if name == "nowiki" else "", kind))
        return end

    def _close_links(self, begin: int, end: int) -> None:
        """Close a link for every two brackets; if their number is odd, the first ends an external link."""
        for link_end in range(begin + 2 + (end - begin) % 2, end + 1, 2):
            if self._open and self._open[-1][0] == "link":
                link = self._pop()[1]
                if hidden := self._hidden_link.match(self._text, link, link_end):
                    self._found.append((link, link_end, "", hidden.lastgroup or ""))

    def _close(self, kind: str, braces: int, end: int) -> None:
        """Close the templates (or the table) that so many braces end, and everything left open inside them."""
        while braces >= 2 and self._kinds[kind]:
            while self._open[-1][0] != kind:
                self._pop()
            _, begin, opened = self._pop()
            braces_left = max(0, opened - braces)
            braces -= opened - braces_left
            if braces_left >= 2:
                self._push(kind, begin, braces_left)
            else:
                self._found.append((begin + braces_left, end - braces, "", kind))

    def _push(self, kind: str, begin: int, braces: int) -> None:
        self._open.append((kind, begin, braces))
        self._kinds[kind] += 1

    def _pop(self) -> tuple[str, int, int]:
        opened = self._open.pop()
        self._kinds[opened[0]] -= 1
        return opened


def _literal(nowiki: str) -> str:
    """The content of <nowiki>: its entities are decoded, then special characters become entities, so none is markup."""
    return _SPECIAL.sub(lambda character: f"&#{ord(character.group())};", unescape(nowiki))


def _paragraphs(text: str, removed: Counter[str]) -> Iterator[tuple[str, bool]]:
    """Yield (paragraph, whether it is a list item), without headings, indented lines and sections without prose."""
    held: list[str] = []
    silent_level = 0  # of the heading of a section without prose; 0: none is open
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line.strip())
        if heading:
            yield from _joined(held)
            level = len(heading[1])
            if not silent_level or level <= silent_level:
                silent_level = level if is_without_prose(_plain(heading[2])) else 0
                if silent_level:
                    removed[SECTIONS] += 1
        elif not silent_level:
            first = line[:1]
            if first not in _LINE_MARKS and not line.startswith("----"):
                held.append(line)
                continue
            yield from _joined(held)
            if first in ("*", "#", ":", ";"):
                yield line.lstrip("*#:; \t"), True
            elif first in ("|", "!"):  # a row of a table without an end
                yield line, False
    yield from _joined(held)


def _joined(held: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paragraph of these lines, if there are any, and forget them."""
    if held:
        yield " ".join(held), False
        held.clear()


def _plain(markup: str) -> str:
    """A paragraph without links, entities and double spaces; markup that cannot be parsed comes back unchanged."""
    text = markup
    if "{{" in text or "}}" in text:  # braces without a partner: the parser would search long for it
        return text
    if "[" in text:
        text = _SIMPLE_LINK.sub(r"\1", text)
    if "[" in text:
        import mwparserfromhell  # only a dump needs it
        from mwparserfromhell.parser import ParserError

        try:
            code = mwparserfromhell.parse(text.replace("<", "&lt;"), skip_style_tags=True)
            text = code.strip_code(normalize=False, collapse=False)
        except ParserError:
            return markup
    if "&" in text:
        text = _ENTITY.sub(lambda entity: unescape(entity.group()), text)
    text = " ".join(text.split())
    if "(" in text or "[" in text:
        text = _OPEN_BRACKET.sub("(", _EMPTY_BRACKETS.sub("", text))
    return _SPACE_BEFORE.sub("", text).strip()
