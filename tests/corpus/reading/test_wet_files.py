"""WET files of Common Crawl: pages as documents, odd heads, and what is damaged."""

import gzip

import pytest

from bert_horovod.corpus.reading import wet_files
from bert_horovod.corpus.reading.formats import format_of, read_sections
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.corpus.store import verify
from bert_horovod.errors import DamagedData, UserError

INFO = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 14\r\n\r\nSoftware: x\r\n\r\n\r\n\r\n"


def record(text, *lines, end=b"\r\n", length=None, kind=b"conversion"):
    block = text if isinstance(text, bytes) else text.encode()
    lines = [
        b"WARC/1.0",
        b"WARC-Type: " + kind,
        *lines,
        b"Content-Length: %d" % (len(block) if length is None else length),
    ]
    return end.join([*lines, b"", block]) + end * 2


LANGUAGE = b"WARC-Identified-Content-Language: deu"
PAGES = [
    record("A page. It has\nlines.\n", b"WARC-Target-URI: https://a.example/1", b"Content-Type: text/plain"),
    record(
        "Wörter\r\n\r\nund mehr.", b"warc-target-uri:https://b.example/\xff", b"WARC-Identified-Content-Language: deu"
    ),
    record(
        "Folded.",
        b"WARC-Target-URI: https://c.example/",
        b"\tand more",
        b"no colon",
        b"WARC-Target-URI: second",
        end=b"\n",
    ),
    record("", b"WARC-Target-URI: https://d.example/"),
    record("WARC/1.0\r\n\r\nis its text.", b"Content-Type: text/plain; charset=utf-8"),
]
TEXTS = ["A page. It has\nlines.", "Wörter\nund mehr.", "Folded.", "", "WARC/1.0\nis its text."]


@pytest.fixture
def read(tmp_path):
    """Writes a file and returns (its sections, what was passed over)."""

    def sections(content, name="a.warc.wet.gz", documents="file", bad_lines="stop"):
        path = tmp_path / name
        path.write_bytes(content)
        source = SourceFile(path, name, len(content))
        with SourceReader(source, bad_lines=bad_lines) as reader:
            return list(read_sections(reader, documents)), dict(reader.passed_over)

    return sections


def members(*records):
    return b"".join(gzip.compress(record, mtime=0) for record in records)  # the same in each process of the tests


@pytest.mark.parametrize(
    ("content", "name"), [(members(INFO, *PAGES), "a.warc.wet.gz"), (INFO + b"".join(PAGES), "A.WET")]
)
def test_a_page_is_a_document_and_its_lines_are_paragraphs(read, content, name):
    sections, passed_over = read(content, name)
    assert [section.text for section in sections] == TEXTS
    assert [section.title for section in sections[:3]] == [
        "https://a.example/1",
        "https://b.example/\ufffd",
        "https://c.example/ and more",
    ]
    assert all(section.ends_document for section in sections)
    assert passed_over == {}


def test_blocks_may_end_anywhere(read, monkeypatch):
    for size in (1, 2, 7):
        monkeypatch.setattr("bert_horovod.corpus.reading.sources.BLOCK_BYTES", size)
        sections, _ = read(members(INFO, *PAGES))
        assert [section.text for section in sections] == TEXTS


def test_other_records_are_counted(read):
    others = [record("x", kind=b"response"), record("{}", b"Content-Type: application/json")]
    assert read(members(INFO, *others, PAGES[0]))[1] == {wet_files.NO_TEXT: 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (members(*PAGES)[:-9], r"a\.warc\.wet\.gz is truncated or damaged .*: fetch or compress"),
        (members(PAGES[0], record("Cut.", length=40)), "record 2: the file ends within it"),
        (members(PAGES[0], PAGES[1][:30]), "record 2: the file ends within it"),
        (members(record("Wrong.", length=3), PAGES[0]), "record 2 begins with 'ng.', expected WARC/1.0"),
        (members(record("No length.").replace(b"Content-Length", b"Length")), "record 1: Content-Length is ''"),
        (members(record("x").replace(b"Length: 1", b"Length: -1")), "Content-Length is '-1'"),
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
        (record(b"caf\xe9"), wet_files.NOT_TEXT, "record 2: not UTF-8 text"),
        (record("a\0b"), wet_files.NOT_TEXT, "record 2: not UTF-8 text"),
        (record("long " * 100), wet_files.TOO_LONG, "record 2: 500 bytes; expected a page"),
    ],
)
def test_a_bad_record_is_an_error_or_passed_over(read, monkeypatch, bad, reason, message):
    monkeypatch.setattr(wet_files, "MAXIMUM_LINE_BYTES", 100)
    content = members(PAGES[0], bad, PAGES[2])
    with pytest.raises(UserError, match=message):
        read(content)
    sections, passed_over = read(content, bad_lines="skip")
    assert [section.text for section in sections] == [TEXTS[0], TEXTS[2]]
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
