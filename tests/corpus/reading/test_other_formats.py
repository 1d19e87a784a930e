"""Files in other formats are refused by name and by content, and prose never is."""

import gzip
import io
import tarfile
import zipfile

import pytest

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.other_formats import refuse_content
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.errors import UserError


def tar() -> bytes:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
        return file.getvalue()


def zipped() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("word/document.xml", "<w>")
        return file.getvalue()


CUES = "1\n00:00:01,000 --> 00:00:02,500\nHello, Anna.\n\n2\n00:00:03,000 --> 00:00:04,000\nGood day.\n\n"
OTHER = [
    ("a.html", "<!DOCTYPE html>\n<html><body>One.</body></html>", "HTML .*tags|HTML"),
    ("b.html", "<p class='x'>One.</p>\n<p>Two.</p>\n\n<p>Three.</p>\n", "HTML"),
    ("c.htm", "<div>" + "<span>One.</span> <span>Two.</span> " * 9, "HTML"),
    ("a.tmx", '<?xml version="1.0"?><tmx/>', "XML"),
    ("a.warc", "WARC/1.0\r\nWARC-Type: conversion\r\n\r\nOne.", "a web archive"),
    ("a.warc.wat", "WARC/1.0\nWARC-Type: warcinfo\n", "a web archive"),
    ("a.rtf", r"{\rtf1\ansi One.}", "RTF"),
    ("a.pdf", "%PDF-1.4 One.", "PDF"),
    ("a.zip", zipped(), "an archive"),
    ("a.tar", tar(), "an archive"),
    ("a.avro", b"Obj\x01avro.schema", "data in a binary format"),
    ("dump.sql", "-- MySQL dump 10.13\n\nCREATE TABLE a (b int);\n", "SQL"),
    ("b.sql", "INSERT INTO a VALUES (1, 'One.'),\n(2, 'Two.');\n", "SQL"),
    ("a.yaml", "---\n" + "name: One\nitems:\n  - text: Two\n" * 3, "YAML"),
    ("b.yml", "- id: 0\n  text: One.\n  label: pos\n- id: 1\n  text: Two.\n  label: neg\n- id: 2\n", "YAML"),
    ("a.tex", "% A paper\n\\documentclass{article}\n\\begin{document}\nOne.\n", "LaTeX"),
    ("b.tex", "\\section{One}\nTwo.\n", "LaTeX"),
    ("a.srt", CUES, "subtitles"),
    ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n", "subtitles"),
    ("a.conllu", "# sent_id = 0\n# text = One\n1\tOne\n", "words with tags"),
    ("b.conll", "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\nsleeps VBZ O\n", "words with tags"),
    ("a.mbox", "From anna@lake.org Mon Nov  2 10:00:00 2020\nSubject: One\n\nTwo.\n", "mail"),
    ("a.nt", "<http://a> <http://b> <http://c> .\n" * 3, "triples"),
]


@pytest.mark.parametrize(("name", "content", "what"), OTHER, ids=[name for name, *_ in OTHER])
@pytest.mark.parametrize("documents", ["file", "blank_line"])
def test_another_format_is_refused_by_its_name_and_by_its_content(tmp_path, name, content, what, documents):
    content = content if isinstance(content, bytes) else content.encode()
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is {what}.* \(by its name\), .*into JSON Lines"):
        find_sources([str(path)])
    for disguise in ("a.txt", "part-00000", "a.txt.gz"):
        disguised = gzip.compress(content) if disguise.endswith(".gz") else b"\xef\xbb\xbf" + content
        (tmp_path / disguise).write_bytes(disguised)
        [source] = find_sources([str(tmp_path / disguise)])
        with (
            SourceReader(source, bad_lines="skip") as reader,
            pytest.raises(UserError, match=rf"{disguise} is {what}.*expected text without anything else"),
        ):
            list(read_sections(reader, documents))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"text": "One."}\n{"text": "Two."}\n', "JSON, which its name does not say"),
        ('[\n  {"text": "One."}\n]\n', "JSON, which"),
        (gzip.compress(b"One.", mtime=0), "compressed, which its name does not say"),
        ("PAR1\x15\x04", "Parquet or Arrow, which"),
        ('id,text,label\n0,"One, two.",pos\n1,Three.,neg\n', "a table, which its name does not say"),
        ("text,label\ngood film,pos\nbad film,neg\nno film,neg\n", "a table"),
        ('3,"Wall St., bears","Short sellers, again"\n2,"Oil","Up"\n4,"Tech","Down"\n', "a table"),
        ("review;stars\nGood, really;5\nBad;1\nSo so, I think;3\n", "a table"),
        ("1\tOne sentence.\n2\tAnother, with commas.\n3\tA third.\n", "a table"),
    ],
)
def test_tables_json_and_compressed_data_are_known_without_a_name_that_says_so(content, what):
    with pytest.raises(UserError, match=f"corpus is {what}.*save it under a name that ends with"):
        refuse_content("corpus", content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    "prose",
    [
        "",
        "One.\n",
        "He said <b>no</b>.\n<p>She said yes.</p>\n\n" + "A long talk about the weather went on.\n" * 5,
        "Roses are red, violets are blue,\nSugar is sweet, and so are you.\nSing, heart, and dance, feet.\n",
        '"Yes," he said, "and no."\n"Why," she asked, "not?"\n"Because," he said, "I know."\n',
        "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。\n白日依山尽,黄河入海流。\n",
        "\tOne paragraph, indented.\n\tAnother.\n\tAnd one more.\n",
        "ANNA: Yes.\nBERT: No.\n" * 5,
        "ANNA: I came, I saw.\nBERT: So?\nANNA: That is all.\n",
        "ANNA: Yes, Bert, I came.\n  BERT: And so did I.\n" * 5,
        "ORC\n\nOrcs live in books.\n",
        "One line with a tab at its end.\t\nAnother.\t\nA third.\t\n",
        "WARC is a format for web archives.\n\nWARC/1.0 stands at its beginning.\n",
        "The statement INSERT INTO adds rows.\n\n    INSERT INTO a VALUES (1);\n\n" + "It is not hard to learn.\n" * 9,
        "Write \\section{One} for a section.\n" * 3,
        "---\ntitle: A note\nauthor: Anna\n---\n\nToday it rained.\n",
        "[1] A reference.\n[2] Another.\n{Braces} too.\n",
        "1\n\nIt was a dark night.\n\n2\n\nIt still was.\n",
        "Of the Helvetii: 263,000\nOf the Tulingi: 36,000\nOf the Boii: 32,000\n",
        "1066 and all that.\n1914, 1939, 1945.\n1989.\n",
        '<doc id="12" url="http://a" title="Anna">\nAnna\n\nAnna is a name.\n</doc>\n',
        "# A heading\n\n- an item, short\n- an item, long\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
        + "And some prose.\n" * 4,
    ],
)
def test_prose_that_looks_alike_is_text(prose):
    refuse_content("corpus", prose.encode())


@pytest.mark.parametrize("name", ["news.pt", "news.ps", "news.br.gz", "news"])
def test_a_language_in_a_name_is_no_format(tmp_path, name):
    (tmp_path / name).write_bytes(b"One.")
    find_sources([str(tmp_path / name)])


def test_no_book_is_taken_for_another_format(shared_data):
    for book in sorted((shared_data / "books").glob("*.txt.gz"))[::4]:
        text = gzip.decompress(book.read_bytes())
        for begin in range(0, len(text), 1 << 17):
            refuse_content(book.name, text[begin : begin + (1 << 14)])
