"""Formats that are not read, known by the names of files and by their first bytes.

Read as text, their tags, numbers and headers would be learned.
"""

from typing import NamedTuple

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown

_HEAD_BYTES = 1 << 9  # of a text are looked at
_EXTRACT, _CONVERT = "extract its text", "write its texts as Parquet or JSON Lines"
_PANDOC = f"{_EXTRACT} (pandoc -t plain does it)"


class _Other(NamedTuple):
    """A format that is not read."""

    what: str
    suffixes: str  # of files' names, with blanks between; none of a language, as .pt, .ps and .br
    mend: str
    begins: tuple[bytes, ...] = ()  # such a file's first bytes, without white space and in lower case


_OTHERS = (
    _Other(
        "HTML",
        ".html .htm .xhtml .shtml .mhtml .svg",
        f"{_EXTRACT} (trafilatura does it)",
        (b"<!doctypehtml", b"<html", b"<head>", b"<body>"),
    ),
    _Other(
        "XML",
        ".sgml .sgm .tmx .tei .xliff .rss .atom .rdf .owl .ttml",
        f"{_EXTRACT}; only a Wikipedia dump is read as it is, if its name ends with .xml",
        (b"<?xml", b"<mediawiki"),
    ),
    _Other(
        "a web archive",
        ".warc .wat .arc",
        "take Common Crawl's extracted texts (.warc.wet.gz), or write those of its records as JSON Lines (warcio reads "
        "them)",
        (b"warc/1.0warc-", b"warc/1.1warc-", b"filedesc://"),
    ),
    _Other("RTF", ".rtf", _PANDOC, (rb"{\rtf",)),
    _Other("PDF or PostScript", ".pdf .djvu", f"{_EXTRACT} (pdftotext does it)", (b"%pdf-", b"%!ps-")),
    _Other(
        "a text document or an e-book",
        ".doc .docx .odt .epub .mobi .ppt .pptx .odp",
        _PANDOC,
        (b"\xd0\xcf\x11\xe0",),
    ),
    _Other("a spreadsheet", ".xls .xlsx .ods .numbers", "save it as .csv"),
    _Other(
        "an archive",
        ".zip .tar .tgz .tbz2 .txz .7z .rar .jar",
        "unpack it",
        (b"pk\x03\x04", b"7z\xbc\xaf", b"rar!\x1a"),
    ),
    _Other("compressed", ".z .lz4 .lzma .lzo .snappy", "decompress it, or compress it as .gz, .bz2, .xz or .zst"),
    _Other(
        "compressed, which its name does not say",
        "",
        "save it under a name that ends with .gz, .bz2, .xz or .zst, or decompress it",
        (b"\x1f\x8b", *(b"bzh%d1ay" % level for level in range(1, 10)), b"\xfd7zxz", b"\x28\xb5\x2f\xfd"),
    ),
    _Other(
        "Parquet or Arrow, which its name does not say",
        "",
        "save it under a name that ends with .parquet or .arrow",
        (b"par1\x15", b"arrow1\x00"),
    ),
    _Other(
        "data in a binary format",
        ".orc .avro .feather .pkl .pickle .npy .npz .h5 .hdf5 .db .sqlite .sqlite3 .dta .sav .rds .tfrecord .bin "
        ".safetensors",
        _CONVERT,
        (b"obj\x01", b"sqliteformat3\x00", b"\x89hdf", b"\x93numpy"),
    ),
    _Other(
        "SQL",
        ".sql",
        "export its table of texts as .csv",
        (b"--mysqldump", b"--mariadbdump", b"--phpmyadminsqldump", b"----postgresqldatabasedump"),
    ),
    _Other("YAML or settings", ".yaml .yml .toml .ini .cfg .conf .properties", _CONVERT, (b"%yaml1.",)),
    _Other(
        "LaTeX", ".tex .latex .ltx .bib .cls .sty", _PANDOC, (rb"\documentclass", rb"\documentstyle", rb"\begin{doc")
    ),
    _Other(
        "subtitles",
        ".srt .vtt .ass .ssa .sub .sbv",
        "take away their numbers and times",
        (b"webvtt00:", b"webvttkind:", b"[scriptinfo]", b"100:00:"),
    ),
    _Other(
        "JSON, which its name does not say",
        ".ipynb .geojson",
        "save it under a name that ends with .jsonl, with an object in each line",
        (b'{"', b'[{"'),
    ),
    _Other(
        "words with tags",
        ".conll .conllu .conllx .iob .iob2 .bio",
        "join its words to sentences",
        (b"-docstart-", b"#newdocid=", b"#newdoc#", b"#sent_id=", b"#global.columns="),
    ),
    _Other("triples", ".nt .nq .ttl .n3", _CONVERT),
    _Other("mail", ".eml .mbox .msg", "write its texts as JSON Lines (Python's mailbox reads it)", (b"return-path:<",)),
)
_BY_SUFFIX = {suffix: other for other in _OTHERS for suffix in other.suffixes.split()}
_TAR = slice(257, 262)  # bytes of a tar file that are "ustar"


def refuse_name(path: object, suffix: str) -> None:
    """Raise UserError if a file's suffix (without a compression's) is that of another format."""
    if other := _BY_SUFFIX.get(suffix):
        raise _refusal(str(path), other, "by its name")


def refuse_content(where: str, head: bytes) -> None:
    """Raise UserError if a text is in another format, by its first bytes `head`."""
    head = head[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf")
    first = b"".join(head.split()).lower()
    other = next((other for other in _OTHERS if first.startswith(other.begins)), None)
    if other := _BY_SUFFIX[".tar"] if head[_TAR] == b"ustar" else other:
        raise _refusal(where, other, f"it begins with {shown(head[:40].strip().decode('latin-1'))}")


def _refusal(where: str, other: _Other, sign: str) -> UserError:
    return UserError(
        f"{where} is {other.what} ({sign}), not plain text; expected text without anything else, because all of it is "
        f"learned: {other.mend}. If these lines are the text to learn, put them into JSON Lines"
    )
