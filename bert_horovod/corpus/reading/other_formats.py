"""Formats that are not read, known by the names of files and by how they begin.

Read as text, their tags, numbers and headers would be learned.
"""

import csv
import re
from typing import NamedTuple

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown

_HEAD_BYTES = 1 << 14  # of a text are looked at
_FEWEST_LINES = 3  # that tell a format
_TABLE_LINES = 200  # are looked at
_BLOCK_TAGS = (
    "p|div|span|a|br|hr|li|ul|ol|dl|dt|dd|td|th|tr|table|tbody|thead|h[1-6]|meta|link|script|style|head|body|html|title|nav|"
    "section|article|header|footer|form|input|button|img|iframe|option|select"
)
_TAG = re.compile(rf"</?(?:{_BLOCK_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_SETTING = r"[ ]*(?:- )*[\w.-]+:(?:[ \t][^\n]*)?\r?\n"
# An item of a list, or a name without a value: in a dialogue, whose lines may be indented, it has words behind it.
_PARENT = r"(?:[ ]*- [\w.-]+:[^\n]*\n|[ ]*[\w.-]+:[ \t]*\r?\n)"
_NESTED = rf"(?:{_SETTING})*?{_PARENT}[ ]{{2,}}{_SETTING}(?:{_SETTING}){{4}}"
_STATEMENT = r"(?:INSERT INTO|(?:CREATE|DROP|ALTER) TABLE|(?:UN)?LOCK TABLES)\b"
_TIMES = r"(?:\d+:)?\d\d:\d\d[,.]\d{2,3} --> "
_COMMAND = r"\\[a-zA-Z]+\*?[\[{]"
_EXTRACT, _CONVERT = "extract its text", "write its texts as Parquet or JSON Lines"
_PANDOC = f"{_EXTRACT} (pandoc -t plain does it)"


class _Other(NamedTuple):
    """A format that is not read."""

    what: str
    suffixes: str  # of files' names, with blanks between; none of a language, as .pt, .ps and .br
    mend: str
    begins: str = "(?!)"  # pattern of such a file's beginning
    lines: str = ""  # pattern of lines' beginnings, in any case, if they tell the format
    share: float = 0.5  # of a file's lines, at least, begin so


_OTHERS = (
    _Other(
        "HTML",
        ".html .htm .xhtml .shtml .mhtml .svg",
        f"{_EXTRACT} (trafilatura does it)",
        "(?i)<(?:!doctype html|html|head|body)\\b",
        rf"[ \t]*{_TAG.pattern}",
    ),
    _Other(
        "XML",
        ".sgml .sgm .tmx .tei .xliff .rss .atom .rdf .owl .ttml",
        f"{_EXTRACT}; only a Wikipedia dump is read as it is, if its name ends with .xml",
        r"<\?xml\b|<mediawiki\b",
    ),
    _Other(
        "a web archive",
        ".warc .wat .arc",
        "take Common Crawl's extracted texts (.warc.wet.gz), or write those of its records as JSON Lines (warcio reads "
        "them)",
        r"WARC/\d[^\n]*\n[\w-]+:|filedesc://",
    ),
    _Other("RTF", ".rtf", _PANDOC, r"\{\\rtf"),
    _Other("PDF or PostScript", ".pdf .djvu", f"{_EXTRACT} (pdftotext does it)", "%PDF-|%!PS"),
    _Other("a text document or an e-book", ".doc .docx .odt .epub .mobi .ppt .pptx .odp", _PANDOC, "\xd0\xcf\x11\xe0"),
    _Other("a spreadsheet", ".xls .xlsx .ods .numbers", "save it as .csv"),
    _Other(
        "an archive",
        ".zip .tar .tgz .tbz2 .txz .7z .rar .jar",
        "unpack it",
        r"PK\x03\x04|7z\xbc\xaf|Rar!\x1a|[^\n]{257}ustar",
    ),
    _Other("compressed", ".z .lz4 .lzma .lzo .snappy", "decompress it, or compress it as .gz, .bz2, .xz or .zst"),
    _Other(
        "compressed, which its name does not say",
        "",
        "save it under a name that ends with .gz, .bz2, .xz or .zst, or decompress it",
        r"\x1f\x8b|BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd",
    ),
    _Other(
        "Parquet or Arrow, which its name does not say",
        "",
        "save it under a name that ends with .parquet or .arrow",
        "PAR1|ARROW1",
    ),
    _Other(
        "data in a binary format",
        ".orc .avro .feather .pkl .pickle .npy .npz .h5 .hdf5 .db .sqlite .sqlite3 .dta .sav .rds .tfrecord .bin "
        ".safetensors",
        _CONVERT,
        r"ORC\n?[\x00-\x08\x0e-\x1f]|Obj\x01|SQLite format 3\x00|\x89HDF|\x93NUMPY",
    ),
    _Other(
        "SQL",
        ".sql",
        "export its table of texts as .csv",
        rf"(?i)-- [\w ]+ dump\b|(?:--[^\n]*\n|\s)*{_STATEMENT}[^\n]*[(;]",
        rf"[ \t]*{_STATEMENT}",
        0.2,
    ),
    _Other(
        "YAML or settings",
        ".yaml .yml .toml .ini .cfg .conf .properties",
        _CONVERT,
        rf"(?:%YAML[^\n]*\n)?---[ \t]*\r?\n(?:{_SETTING}){{8}}|{_NESTED}",
    ),
    _Other(
        "LaTeX",
        ".tex .latex .ltx .bib .cls .sty",
        _PANDOC,
        r"(?:%[^\n]*\n|\s)*\\(?:documentclass|documentstyle|usepackage|begin\{|chapter\*?\{|section\*?\{)",
        rf"[ \t]*{_COMMAND}",
        0.2,
    ),
    _Other(
        "subtitles",
        ".srt .vtt .ass .ssa .sub .sbv",
        "take away their numbers and times",
        rf"WEBVTT\b|\[Script Info\]|\d+\r?\n{_TIMES}",
        _TIMES,
        0.15,
    ),
    _Other(
        "JSON, which its name does not say",
        ".ipynb .geojson",
        "save it under a name that ends with .jsonl, with an object in each line",
        r'(?:\[\s*)?\{\s*(?:"(?:[^"\\\n]|\\.){0,100}"\s*:|\})',
    ),
    _Other(
        "words with tags",
        ".conll .conllu .conllx .iob .iob2 .bio",
        "join its words to sentences",
        r"-DOCSTART-|# (?:newdoc|sent_id|global\.columns)\b",
        r"\S+(?: \S+)* (?-i:O|[BIESLU]-[\w-]+)\r?$",
    ),
    _Other("triples", ".nt .nq .ttl .n3", _CONVERT, r"@prefix \w*: <", r"<[^<>\s]+> <[^<>\s]+> "),
    _Other(
        "mail",
        ".eml .mbox .msg",
        "write its texts as JSON Lines (Python's mailbox reads it)",
        r"From \S+ +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d |(?:Return-Path|Received|Message-ID): ",
    ),
)
_BY_SUFFIX = {suffix: other for other in _OTHERS for suffix in other.suffixes.split()}
_HTML = _OTHERS[0]
_TABLE = _Other(
    "a table, which its name does not say",
    "",
    "save it under a name that ends with .csv or .tsv, and name its column of text: --text_field NAME",
)
_COLUMNS = (  # usual names
    "id index idx text texts title label labels sentence content body name date url category class review comment "
    "question answer source target lang language score author description summary message"
)
_NUMBER = re.compile(r"[-+]?\d[\d.,:eE-]*")
_THOUSANDS = re.compile(r"\d{3}")  # as after the comma of 263,000


def refuse_name(path: object, suffix: str) -> None:
    """Raise UserError if a file's suffix (without a compression's) is that of another format."""
    if other := _BY_SUFFIX.get(suffix):
        raise _refusal(str(path), other, "by its name")


def refuse_content(where: str, head: bytes) -> None:
    """Raise UserError if a text is in another format, by its first bytes `head`.

    Prose with some tags, commas or tabs is text: only the first bytes, or many lines, tell another format.
    """
    # A character for each byte: whoever reads on reports what is not UTF-8.
    text = head[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    beginning = text.lstrip(" \t\r\n")  # str.lstrip() takes away the first byte of gzip, too
    lines = [line for line in text.split("\n") if line.strip()]
    for other in _OTHERS:
        marked = len(re.findall(rf"(?im)^(?:{other.lines})", text)) if other.lines else 0
        if re.match(other.begins, beginning) or marked >= max(_FEWEST_LINES, other.share * len(lines)):
            raise _refusal(where, other, f"it begins with {shown(beginning[:40])}")
    tags = [tag.group() for tag in _TAG.finditer(text)]
    if len(tags) >= 10 and sum(map(len, tags)) > len(text) / 10:
        raise _refusal(where, _HTML, f"it has tags such as {shown(tags[:3])}")
    if _is_table(lines[:_TABLE_LINES]):
        raise _refusal(where, _TABLE, f"it begins with {shown(lines[0][:60])}")


def _refusal(where: str, other: _Other, sign: str) -> UserError:
    return UserError(
        f"{where} is {other.what} ({sign}), not plain text; expected text without anything else, because all of it is "
        f"learned: {other.mend}. If these lines are the text to learn, put them into JSON Lines"
    )


def _is_table(lines: list[str]) -> bool:
    """Whether the lines are rows of tab-separated values or of CSV."""
    lines = [line.rstrip("\r") for line in lines if not line.startswith("#")]
    if len(lines) < _FEWEST_LINES:
        return False
    tabs = lines[0].count("\t")
    if (
        "\t" in lines[0].strip()
        and sum(line.count("\t") == tabs and line[0] != "\t" for line in lines) > 0.98 * len(lines) - 1
    ):
        return True
    return any(_is_csv(lines, separator) for separator in ",;|" if separator in lines[0])


def _is_csv(lines: list[str], separator: str) -> bool:
    """Whether nearly all rows have as many fields as the first, no blank before one, and something that no prose has.

    That is a usual name of a column, a column of numbers, or fields within quotation marks.
    """
    try:
        rows = list(csv.reader((f"{line}\n" for line in lines), delimiter=separator))
    except csv.Error:
        return False
    header, fitting = rows[0], [row for row in rows[1:] if len(row) == len(rows[0]) and not _has_blanks(row)]
    if len(header) < 2 or len(fitting) < max(2, 0.9 * (len(rows) - 1) - 1) or _has_blanks(header):
        return False
    named = any(name.strip().lower() in _COLUMNS.split() for name in header)
    numbers = any(map(_is_numbers, zip(*fitting, strict=True)))
    quoted = sum(line.count(f'{separator}"') + line.count(f'"{separator}') for line in lines)
    return named or numbers or quoted >= len(lines)


def _is_numbers(column: tuple[str, ...]) -> bool:
    return all(map(_NUMBER.fullmatch, column)) and not all(map(_THOUSANDS.fullmatch, column))


def _has_blanks(row: list[str]) -> bool:
    return any(field.startswith(" ") for field in row[1:])
