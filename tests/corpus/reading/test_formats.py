"""Formats go by names of files, one entry of a table each; CSV and TSV: a row is a document, its text in a column."""

import gzip
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading import formats
from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import DUMP, JSON_LINES, NO_ROW, TABLE, TEXT, Format, format_of, read_sections
from bert_horovod.corpus.reading.pieces import piece_reader, split_source
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.corpus.reading.text import record_sections
from bert_horovod.errors import UserError


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
    sections = [section for piece in pieces for section in read_sections(piece_reader(piece), "file")]
    assert [(section.title, section.text) for section in sections] == [
        ("One", "A text."),
        ("Two", "Another."),
        ("Three", "The last."),
    ]


def sections(path, mode="file", passed_over=None, **options):
    [source] = find_sources([str(path)])
    with SourceReader(source, **options) as reader:
        pairs = [(section.title, section.text) for section in read_sections(reader, mode)]
        if passed_over is not None:
            passed_over.update(reader.passed_over)
    return pairs


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
    with pytest.raises(
        UserError, match=r"a.tsv has no column 'text', its first line is \['id', 'body'\].*--text_field"
    ):
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
    for name in (
        "a.txt",
        "INDEX.tsv",
        "a.csv",
        "a.html",
        "LICENSE",
        "README",
        "_SUCCESS",
        "wiki_00",
        "part-00000",
        "xaa",
    ):
        (tmp_path / name).write_text("One.")
    assert [source.name for source in find_sources([str(tmp_path)])] == ["a.txt", "part-00000", "wiki_00", "xaa"]
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
