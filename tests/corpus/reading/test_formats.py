"""Formats go by names of files, one entry of a table each."""

import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading import formats
from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import DUMP, JSON_LINES, TABLE, TEXT, Format, format_of
from bert_horovod.corpus.reading.pieces import piece_reader, split_source
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.text import record_sections
from bert_horovod.errors import UserError
from tests.corpus.reading.documents import documents


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


def test_links_to_directories_are_passed_over_and_told(tmp_path, capsys):
    (tmp_path / "far").mkdir()
    (tmp_path / "corpus").mkdir()
    for name in ("corpus/a.txt", "far/b.txt"):
        (tmp_path / name).write_text("One.")
    (tmp_path / "corpus" / "b.txt").symlink_to(tmp_path / "far" / "b.txt")
    assert len(find_sources([str(tmp_path / "corpus")])) == 2
    assert capsys.readouterr().err == ""
    (tmp_path / "corpus" / "wiki").symlink_to(tmp_path / "far")
    assert [source.name for source in find_sources([str(tmp_path / "corpus")])] == ["a.txt", "b.txt"]
    told = f"passing over links to directories in {tmp_path / 'corpus'}, name them too: wiki\n"
    assert capsys.readouterr().err == told
