"""Files in other formats are refused by their names and by their first bytes, and prose never is."""

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
    ("a.html", "<!DOCTYPE html>\n<html><body>One.</body></html>", "HTML"),
    ("a.tmx", '<?xml version="1.0"?><tmx/>', "XML"),
    ("a.warc", "WARC/1.0\r\nWARC-Type: conversion\r\n\r\nOne.", "a web archive"),
    ("a.warc.wat", "WARC/1.0\nWARC-Type: warcinfo\n", "a web archive"),
    ("a.rtf", r"{\rtf1\ansi One.}", "RTF"),
    ("a.pdf", "%PDF-1.4 One.", "PDF"),
    ("a.zip", zipped(), "an archive"),
    ("a.tar", tar(), "an archive"),
    ("a.avro", b"Obj\x01avro.schema", "data in a binary format"),
    ("dump.sql", "-- MySQL dump 10.13\n\nCREATE TABLE a (b int);\n", "SQL"),
    ("a.tex", "\\documentclass{article}\n\\begin{document}\nOne.\n", "LaTeX"),
    ("a.srt", CUES, "subtitles"),
    ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n", "subtitles"),
    ("a.conllu", "# sent_id = 0\n# text = One\n1\tOne\n", "words with tags"),
    ("b.conll", "-DOCSTART- -X- -X- O\n\nEU NNP B-ORG\n", "words with tags"),
    ("a.eml", "Return-Path: <anna@lake.org>\nSubject: One\n\nTwo.\n", "mail"),
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
    ],
)
def test_json_and_compressed_data_are_known_without_a_name_that_says_so(content, what):
    with pytest.raises(UserError, match=f"corpus is {what}.*save it under a name that ends with"):
        refuse_content("corpus", content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    "prose",
    [
        "",
        "<p>He said <b>no</b>.</p>\n<p>She said yes.</p>\n" * 9,
        "<Heading> of a play.\n",
        "id,text\n1,One.\n2,Two.\n3,Three.\n",
        "Good, she said,bad\n" * 5,
        "1\tOne verse.\n2\tAnother.\n3\tA third.\n",
        "- Anna: yes\n  Bert: no\n" * 9,
        "---\ntitle: A note\nauthor: Anna\n---\n\nToday it rained.\n",
        "Create table manners early;\n" * 5,
        "\\emph{One} is not two.\n" * 5,
        "ORC\n\nOrcs live in books.\n",
        "PAR1 is a gene.\n",
        "BZh9 is how it begins.\n",
        "WARC/1.0 is a format for web archives.\n",
        "# New doctors\n\nTwo came.\n",
        "From Anna Wed to Bert\n",
        "Received: three letters.\n",
        "I O\nU O\n" * 5,
        '<doc id="12" url="http://a" title="Anna">\nAnna\n\nAnna is a name.\n</doc>\n',
        "1\n\nIt was a dark night.\n\n2\n\nIt still was.\n",
        "[1] A reference.\n[2] Another.\n{Braces} too.\n",
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
