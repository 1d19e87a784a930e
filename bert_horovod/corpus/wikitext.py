"""Wikitext to plain paragraphs.

One linear scan takes out what holds no prose (templates, tables, references, formulas, comments, files, categories),
nested as they may be; headings and lists then go by lines; mwparserfromhell reads what markup is left in a paragraph,
which is links for the most part. Taking out first is what makes it fast: the parser builds an object for every node.
"""

import re
from collections.abc import Iterator
from html import unescape

import mwparserfromhell
from mwparserfromhell.parser import ParserError

_NO_PROSE_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|score|source|syntaxhighlight|pre|imagemap|graph|mapframe|maplink|"
    "hiero|templatestyles|templatedata|includeonly|section|inputbox|categorytree|indicator"
)
# What the scan stops at. Tables are tables only at a line's beginning, and "|}}" ends a template.
_TOKEN = re.compile(
    rf"(?P<comment><!--)|<(?P<tag>{_NO_PROSE_TAGS}|nowiki)\b[^<>]*>|(?P<template>\{{\{{+)|(?P<template_end>\}}\}}+)|"
    r"(?P<link>\[\[)|(?P<link_end>\]\]+)|^[ \t:*#]*(?P<table>\{\|)|^[ \t:*#]*(?P<table_end>\|\})(?!\})",
    re.MULTILINE | re.IGNORECASE,
)
_TAG_ENDS = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in (*_NO_PROSE_TAGS.split("|"), "nowiki")}
# Names of the file and category namespaces in large Wikipedias, and links to other languages (never shown).
_HIDDEN_LINK = re.compile(
    r"\[\[\s*(?:(?:file|image|media|category|datei|bild|kategorie|fichier|catégorie|archivo|imagen|categoría|immagine|"
    r"categoria|ficheiro|imagem|arquivo|bestand|afbeelding|categorie|plik|grafika|kategoria|fil|kategori|файл|"
    r"изображение|категория|ファイル|画像|カテゴリ|文件|档案|檔案|图像|圖像|分类|分類)\s*:|(?-i:[a-z]{2,3}|simple)(?-i:-[a-z-]+)?:"
    r"[^|\[\]]*\]\])",
    re.IGNORECASE,
)
_BLOCK_TAG = re.compile(
    r"</?(?:div|p|center|blockquote|poem|table|tr|td|th|caption|tbody|ul|ol|li|dl|dt|dd|h[1-6]|hr)\b[^<>]*>[ \t]*",
    re.IGNORECASE,
)
_BREAK_TAG = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_INLINE_TAG = re.compile(
    r"</?(?:span|small|big|sub|sup|b|i|u|s|em|strong|cite|code|tt|kbd|samp|var|abbr|bdi|bdo|font|q|del|ins|strike|mark|"
    r"dfn|time|wbr|nobr|noinclude|onlyinclude|rp|rt|rb|ruby)\b[^<>]*>",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(={1,6})(.+?)\1")
_NO_PROSE_SECTIONS = frozenset(
    (
        "references", "external links", "see also", "further reading", "notes", "bibliography", "sources", "footnotes",
        "citations", "notes and references", "references and notes", "notes and citations", "works cited", "literature",
        "external link", "reference", "selected bibliography", "gallery", "sources and further reading",
        "references and sources", "references and further reading", "bibliography and further reading",
    )
)  # fmt: skip
_LINE_MARKS = ("", " ", "\t", "*", "#", ":", ";", "|", "!")  # of lines that end a paragraph
_QUOTES = re.compile("'{2,}")
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|\w+);", re.IGNORECASE)
# What the removed leaves behind: empty brackets, a space before a comma.
_EMPTY_BRACKETS = re.compile(r"\s*[(\[](?:[\s,;:]|(?:or|and)\b)*[)\]]")
_OPEN_BRACKET = re.compile(r"\((?:\s*[,;:])*\s+|\((?:\s*[,;:])+")
_SPACE_BEFORE = re.compile(r"\s+(?=[,;:.)](?:\s|$))")
_RESIDUE = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|-|==|\[(?:https?:)?//|</?[a-z][^<>]*>|<(?:ref|!--)|\|\s*thumb|thumb\s*\||"
    r"\b(?:category|file|image):\S|^[|!]|\|\||!!",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:\S+\s+){4,}.*[.!?…。！？][\"'”’»›)\]」』]*", re.DOTALL)


def plain_text(wikitext: str) -> tuple[list[str], int]:
    """The prose of an article: (paragraphs without markup, number of paragraphs left out as they still held markup).

    A list item is a paragraph if it is a sentence of at least five words; headings, indented code, and sections such
    as "References" are left out. Words are apart by single spaces.
    """
    paragraphs, dropped = [], 0
    text = _BLOCK_TAG.sub("\n\n", _without_blocks(wikitext))
    text = _QUOTES.sub("", _MAGIC_WORD.sub("", _INLINE_TAG.sub("", _BREAK_TAG.sub(" ", text))))
    for markup, is_item in _paragraphs(text):
        paragraph = _plain(markup)
        if _RESIDUE.search(paragraph):
            dropped += 1
        elif any(map(str.isalpha, paragraph)) and (not is_item or _SENTENCE.fullmatch(paragraph)):
            paragraphs.append(paragraph)
    return paragraphs, dropped


def _without_blocks(wikitext: str) -> str:
    """The text without what the scan takes out."""
    kept, begin = [], 0
    for start, end in _blocks(wikitext):
        if start > begin:
            kept.append(wikitext[begin:start])
        if end > begin:
            begin = end
            if not kept or kept[-1].endswith("\n"):  # else what follows would be taken for an indented line
                while wikitext[begin : begin + 1] in (" ", "\t"):
                    begin += 1
    kept.append(wikitext[begin:])
    return "".join(kept)


def _blocks(text: str) -> list[tuple[int, int]]:
    """Where the things without prose are, by their beginnings; some lie in others."""
    found: list[tuple[int, int]] = []
    open_: list[tuple[str, int, int]] = []  # kind, where it begins, braces still to be closed
    endless: set[str] = set()  # tags of which no more ends follow
    at = 0
    while token := _TOKEN.search(text, at):
        kind, start, at = token.lastgroup, token.start(token.lastgroup), token.end()
        if kind == "comment":
            end = text.find("-->", at)
            at = len(text) if end < 0 else end + 3
            found.append((start, at))
        elif kind == "tag":
            name = token["tag"].lower()
            at = _tag_end(text, token, name, endless)
            if name != "nowiki":
                found.append((start - 1, at))
        elif kind in ("template", "link", "table"):
            open_.append((kind, start, at - start))
        elif kind == "link_end":
            for end in range(start + 2 + (at - start) % 2, at + 1, 2):  # of an odd "]", the first is another link's
                if open_ and open_[-1][0] == "link":
                    begin = open_.pop()[1]
                    if _HIDDEN_LINK.match(text, begin, end):
                        found.append((begin, end))
        else:
            _close(kind.removesuffix("_end"), start, at, open_, found)
    return sorted(found)


def _tag_end(text: str, tag: re.Match, name: str, endless: set[str]) -> int:
    """Where a tag's content ends with its closing tag; the opening tag's end if it has none."""
    if tag.group().endswith("/>") or name in endless:
        return tag.end()
    end = _TAG_ENDS[name].search(text, tag.end())
    if end is None:
        endless.add(name)
        return tag.end()
    return end.end()


def _close(kind: str, start: int, end: int, open_: list[tuple[str, int, int]], found: list[tuple[int, int]]) -> None:
    """Close the innermost template or table, and what was left open in it.

    Of a run of braces, more than one template may be closed.
    """
    left = end - start
    while left >= 2 and any(opened[0] == kind for opened in open_):
        while open_[-1][0] != kind:
            open_.pop()
        _, begin, braces = open_.pop()
        closed = min(left, braces)
        left -= closed
        braces -= closed
        if braces >= 2:
            open_.append((kind, begin, braces))
        else:
            found.append((begin + braces, end - left))


def _paragraphs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield (paragraph, whether it is a list item), without headings, indented lines and the sections of no prose."""
    held: list[str] = []
    silent_level = 0  # of the heading of a section without prose; 0: none is open
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line.strip())
        if heading:
            yield from _joined(held)
            level = len(heading[1])
            if not silent_level or level <= silent_level:
                silent_level = level if _plain(heading[2]).lower() in _NO_PROSE_SECTIONS else 0
        elif not silent_level:
            first = line[:1]
            if first not in _LINE_MARKS and not line.startswith("----"):
                held.append(line)
                continue
            yield from _joined(held)
            if first in ("*", "#", ":", ";"):
                yield line.lstrip("*#:; \t"), True
            elif first in ("|", "!"):  # of a table that has no end
                yield line, False
    yield from _joined(held)


def _joined(held: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paragraph of these lines, if there are any, and forget them."""
    if held:
        yield " ".join(held), False
        held.clear()


def _plain(markup: str) -> str:
    """A paragraph without links, entities and double spaces; what cannot be parsed comes back as it is."""
    text = markup
    if "[" in text or "<" in text:
        try:
            text = mwparserfromhell.parse(text, skip_style_tags=True).strip_code(normalize=False, collapse=False)
        except ParserError:
            return markup
    if "&" in text:
        text = _ENTITY.sub(lambda entity: unescape(entity.group()), text)
    if "(" in text:
        text = _OPEN_BRACKET.sub("(", _EMPTY_BRACKETS.sub("", text))
    return " ".join(_SPACE_BEFORE.sub("", text).split())
