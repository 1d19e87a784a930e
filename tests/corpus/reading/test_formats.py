"""Formats go by names of files, one entry of a table each; rows of CSV and TSV, and WET pages of Common Crawl."""

import gzip
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading import formats
from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import DUMP, JSON_LINES, NO_ROW, TABLE, TEXT, Format, format_of
from bert_horovod.corpus.reading.pieces import piece_reader, split_source
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.corpus.reading.text import record_sections
from bert_horovod.corpus.store import verify
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import documents, source_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("a.txt", TEXT), ("a", TEXT), ("A.TXT.GZ", TEXT), ("a.md", TEXT), ("a.parquet.gz", TEXT)),
        *(("a.jsonl", JSON_LINES), ("a.ndjson.zst", JSON_LINES), ("a.json", JSON_LINES)),
        *(("a.xml", DUMP), ("a.xml-p1p2.bz2", DUMP), ("a.parquet", TABLE), ("a.arrow", TABLE)),
    ],
)
def test_the_name_of_a_file_says_its_format(name, expected):
    assert format_of(SourceFile(Path(name), name, 1)) is expected


@pytest.mark.parametrize(
    ("documents", "cut"), [("file", {"b.jsonl", "c.xml"}), ("blank_line", {"a.txt", "b.jsonl", "c.xml"})]
)
def test_plain_files_can_be_cut_and_text_only_at_blank_lines(tmp_path, documents, cut):
    for name in ("a.txt", "b.jsonl", "c.xml", "d.jsonl.gz"):
        (tmp_path / name).write_bytes(b"x" * 100)
    pieces = {source.name: split_source(source, documents, 50) for source in find_sources([str(tmp_path)])}
    assert {name for name, parts in pieces.items() if len(parts) > 1} == cut


def test_a_new_format_is_an_entry_of_the_table(tmp_path, monkeypatch):
    def tagged(reader, documents):
        for number, line in reader.lines():
            title, text = line.split("|")
            yield record_sections(number, text, title, documents, reader)

    toy = Format((".toy",), tagged, may_be_cut=lambda source, documents: True)
    monkeypatch.setitem(formats.FORMATS, ".toy", toy)
    (tmp_path / "a.toy").write_text("One|A text.\nTwo|Another.\nThree|The last.\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "Of another format."}))
    (source, _) = find_sources([str(tmp_path)])
    pieces = split_source(source, "file", 15)
    assert len(pieces) > 1
    found = [document for piece in pieces for document in documents(piece_reader(piece))]
    assert found == [("One", "A text."), ("Two", "Another."), ("Three", "The last.")]


def sections(path, mode="file", passed_over=None, **options):
    reader = SourceReader(source_of(path), **options)
    found = documents(reader, mode)
    if passed_over is not None:
        passed_over.update(reader.passed_over)
    return found


CSV = 'id,text,title\n0,"One, two.\nThree.\n\nFour ""five"".",A\n\n1,Six.,\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV.gz", CSV),
        ("a.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("a.csv", CSV.replace(",", ";").replace("One;", "One,")),
        ("a.csv", CSV.replace(",", "\t").replace("One\t", "One,")),
    ],
)
def test_a_row_is_a_document_and_its_text_follows_the_rule_of_documents(tmp_path, name, content):
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert sections(tmp_path / name) == [("A", 'One, two. Three.\nFour "five".'), ("", "Six.")]
    assert sections(tmp_path / name, "blank_line")[0] == ("A", 'One, two.\nThree.\nFour "five".')


def test_the_text_of_tsv_is_in_the_column_that_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text('id\tbody\n0\tOne, "two".\n1\tThree.\n')
    assert sections(tmp_path / "a.tsv", text_field="body") == [("", 'One, "two".'), ("", "Three.")]
    with pytest.raises(UserError, match=r"a.tsv has no column 'text', its first line is \['id'"):
        sections(tmp_path / "a.tsv")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("a.csv", "a,b,c", "line 3: 3 fields, expected 2 as in the first line"),
        ("a.csv", '"a"b,c', "line 3: no CSV"),
        ("a.tsv", '"a\tb', "line 3: 2 fields, expected 1 .*let its name end with .csv"),
        ("a.tsv", '"a ""b"" c"', "line 3: the text stands within quotation marks; .*let its name end with .csv"),
    ],
)
def test_a_row_that_does_not_fit_is_a_bad_line(tmp_path, name, row, message):
    path, header, good = tmp_path / name, *(("text", "One.") if name == "a.tsv" else ("text,label", "One.,1"))
    path.write_text(f"{header}\n{good}\n{row}\n{good}\n")
    with pytest.raises(UserError, match=f"{message}.*--bad_lines skip"):
        sections(path)
    passed_over = {}
    assert sections(path, bad_lines="skip", passed_over=passed_over) == [("", "One.")] * 2
    assert passed_over == {NO_ROW: 1}


def test_tables_in_a_directory_are_passed_over_and_told(tmp_path, capsys):
    texts = ["a.txt", "part-00000", "wiki_00", "xaa"]
    for name in (*texts, "INDEX.tsv", "a.csv", "a.html", "LICENSE", "README", "_SUCCESS"):
        (tmp_path / name).write_text("One.")
    assert [source.name for source in find_sources([str(tmp_path)])] == texts
    assert "passing over 6 files" in (told := capsys.readouterr().err)
    assert "INDEX.tsv, LICENSE" in told
    assert len(find_sources([str(tmp_path / "[LRx_]*")])) == 1
    assert "LICENSE, README, _SUCCESS" in capsys.readouterr().err
    assert [source.name for source in find_sources([str(tmp_path / "LICENSE")])] == ["LICENSE"]
    with pytest.raises(UserError, match=r"matches notes alone, such as LICENSE"):
        find_sources([str(tmp_path / "[LR_]*")])
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("text\nOne.")
    with pytest.raises(UserError, match=r"holds no text; .*such as .csv, one by one or by a glob"):
        find_sources([str(tmp_path / "tables")])


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
    assert read(members(INFO, *others, PAGES[0]))[1] == {formats.NOT_EXTRACTED: 2}


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
        (record(b"caf\xe9"), formats.NOT_TEXT, "record 2: not UTF-8 text"),
        (record("a\0b"), formats.NOT_TEXT, "record 2: not UTF-8 text"),
        (record("long " * 100), formats.TOO_LONG, "record 2: 500 bytes; expected a page"),
    ],
)
def test_a_bad_record_is_an_error_or_passed_over(read, monkeypatch, bad, reason, message):
    monkeypatch.setattr(formats, "MAXIMUM_LINE_BYTES", 100)
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
