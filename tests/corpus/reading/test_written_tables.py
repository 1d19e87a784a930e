"""CSV and TSV: a row is a document."""

import gzip

import pytest

from bert_horovod.corpus.reading.sources import NO_ROW, SourceReader
from bert_horovod.errors import UserError
from tests.corpus.reading.documents import documents, source_of


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
