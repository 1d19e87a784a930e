"""CSV and TSV: a row is a document, with its text in a named column."""

import gzip

import pytest

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.table_rows import NO_ROW
from bert_horovod.errors import UserError


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
