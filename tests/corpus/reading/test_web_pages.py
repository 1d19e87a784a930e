"""WET files of Common Crawl: a page is a document, its lines are paragraphs."""

import gzip

import pytest

from bert_horovod.corpus.reading import web_pages
from bert_horovod.corpus.reading.formats import format_of
from bert_horovod.corpus.reading.sources import RECORD_NOT_TEXT, RECORD_TOO_LONG, SourceFile, SourceReader
from bert_horovod.corpus.reading.web_pages import NOT_EXTRACTED
from bert_horovod.corpus.store import verify
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import documents

INFO = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 14\r\n\r\nSoftware: x\r\n\r\n\r\n\r\n"


def record(text, *lines, end=b"\r\n", length=None, kind=b"conversion"):
    block = text if isinstance(text, bytes) else text.encode()
    size = b"Content-Length: %d" % (len(block) if length is None else length)
    return end.join([b"WARC/1.0", b"WARC-Type: " + kind, *lines, size, b"", block]) + end * 2


LANGUAGE = b"WARC-Identified-Content-Language: deu"
FOLDED = (b"WARC-Target-URI: https://c.example/", b"\tand more", b"no colon", b"WARC-Target-URI: second")
PAGES = [
    record("A page. It has\nlines.\n", b"WARC-Target-URI: https://a.example/1", b"Content-Type: text/plain"),
    record("Wörter\r\n\r\nund mehr.", b"warc-target-uri:https://b.example/\xff", LANGUAGE),
    record("Folded.", *FOLDED, end=b"\n"),
    record("", b"WARC-Target-URI: https://d.example/"),
    record("WARC/1.0\r\n\r\nis its text.", b"Content-Type: text/plain; charset=utf-8"),
]
TEXTS = ["A page. It has\nlines.", "Wörter\nund mehr.", "Folded.", "", "WARC/1.0\nis its text."]


@pytest.fixture
def read(tmp_path):
    """Writes a file and returns (its documents, what was passed over)."""

    def documents_of(content, name="a.warc.wet.gz", bad_lines="stop"):
        (tmp_path / name).write_bytes(content)
        reader = SourceReader(SourceFile(tmp_path / name, name, len(content)), bad_lines=bad_lines)
        return documents(reader), dict(reader.passed_over)

    return documents_of


def members(*records):
    return b"".join(gzip.compress(record, mtime=0) for record in records)  # the same in each process of the tests


@pytest.mark.parametrize(
    ("content", "name"), [(members(INFO, *PAGES), "a.warc.wet.gz"), (INFO + b"".join(PAGES), "A.WET")]
)
def test_a_page_is_a_document_and_its_lines_are_paragraphs(read, content, name):
    found, passed_over = read(content, name)
    titles = ["https://a.example/1", "https://b.example/\ufffd", "https://c.example/ and more"]
    assert ([title for title, _ in found[:3]], [text for _, text in found]) == (titles, TEXTS)
    assert passed_over == {}


def test_blocks_may_end_anywhere(read, monkeypatch):
    for size in (1, 2, 7):
        monkeypatch.setattr("bert_horovod.corpus.reading.sources.BLOCK_BYTES", size)
        assert [text for _, text in read(members(INFO, *PAGES))[0]] == TEXTS


def test_other_records_are_counted(read):
    others = [record("x", kind=b"response"), record("{}", b"Content-Type: application/json")]
    assert read(members(INFO, *others, PAGES[0]))[1] == {NOT_EXTRACTED: 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (members(*PAGES)[:-9], r"a\.warc\.wet\.gz is truncated or damaged .*: fetch or compress"),
        (
            b"".join(PAGES),
            r"does not begin as \.gz data do: it is damaged, or a server .* has decompressed it",
        ),
        (members(PAGES[0], record("Cut.", length=40)), "record 2: the file ends within it"),
        (members(PAGES[0], PAGES[1][:30]), "record 2: the file ends within it"),
        (members(record("Wrong.", length=3), PAGES[0]), "record 2 begins with 'ng.', expected WARC/1.0"),
        (members(record("No length.").replace(b"Content-Length", b"Length")), "record 1: Content-Length is ''"),
        (members(record("x").replace(b"Length: 1", b"Length: -1")), "Content-Length is '-1'"),
        (members(record("x").replace(b"Length: 1", b"Length: " + b"1" * 5000)), "Content-Length is '1111"),
        (members(b"Some text.\n\nMore."), "record 1 begins with 'Some text.', expected WARC/1.0"),
        (members(bytes(3 << 20)), "record 1: no record of WARC begins here"),
    ],
)
def test_damaged_files_are_told(read, content, message):
    with pytest.raises(DamagedData, match=message):
        read(content)


@pytest.mark.parametrize(
    ("bad", "reason", "message"),
    [
        (record(b"caf\xe9"), RECORD_NOT_TEXT, "record 2: not UTF-8 text"),
        (record("a\0b"), RECORD_NOT_TEXT, "record 2: not UTF-8 text"),
        (record("long " * 100), RECORD_TOO_LONG, "record 2: 500 bytes; expected a page"),
    ],
)
def test_a_bad_record_is_an_error_or_passed_over(read, monkeypatch, bad, reason, message):
    monkeypatch.setattr(web_pages, "MAXIMUM_LINE_BYTES", 100)
    content = members(PAGES[0], bad, PAGES[2])
    with pytest.raises(UserError, match=message):
        read(content)
    found, passed_over = read(content, bad_lines="skip")
    assert [text for _, text in found] == [TEXTS[0], TEXTS[2]]
    assert passed_over == {reason: 1}


def test_a_store_is_made_of_a_directory_of_them(make_store, tmp_path):
    directory = tmp_path / "crawl"
    directory.mkdir()
    for i in range(2):
        (directory / f"CC-MAIN-{i}.warc.wet.gz").write_bytes(members(INFO, record(f"The cat {i}. A dog."), *PAGES))
    (directory / "CC-MAIN.warc.gz").write_bytes(members(INFO))
    store = verify(make_store(directory).path)
    assert store.manifest["totals"]["documents"] == 10
    assert b"https://a.example/1\n" in bytes(store.shards[0].titles)
    assert format_of(SourceFile(directory / "x.arrow.gz", "x", 0)) is format_of(SourceFile(directory / "x.txt", "x", 0))
    with pytest.raises(UserError, match="is a web archive"):
        make_store(directory / "CC-MAIN.warc.gz", output=tmp_path / "other")
