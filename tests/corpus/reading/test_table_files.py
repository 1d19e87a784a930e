"""Tables of texts are read to the letter: TSV without quoting, CSV with it, JSON Lines."""

import bz2
import gzip
import tracemalloc
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.table_files import (
    Dialect,
    Table,
    kind_of,
    read_table,
    require_columns,
    require_table_name,
    table_blocks,
)
from bert_horovod.corpus.table_writing import table_text
from bert_horovod.errors import DamagedData, UserError


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_in_tsv_quotes_are_text_and_so_are_line_ends_of_other_readers(tmp_path):
    text = 'sentence\tlabel\n"an open quote\t1\nit \'s "fine" \t0\na\u2028b\x85c\x0cd\t1\n'
    table = read_table(written(tmp_path / "train.tsv", text))
    assert table.columns == ["sentence", "label"]
    assert table.rows == [(2, ['"an open quote', "1"]), (3, ['it \'s "fine" ', "0"]), (4, ["a\u2028b\x85c\x0cd", "1"])]


def test_compressed_files_line_ends_of_windows_and_a_byte_order_mark_are_read(tmp_path):
    text = "\ufeffsentence\tlabel\r\ngood\t1\r\nbad\t0"
    for name, packed in (("a.tsv.gz", gzip.compress(text.encode())), ("a.tsv.bz2", bz2.compress(text.encode()))):
        (tmp_path / name).write_bytes(packed)
        assert read_table(tmp_path / name).columns == ["sentence", "label"]
        assert read_table(tmp_path / name).rows == [(2, ["good", "1"]), (3, ["bad", "0"])]


def test_csv_has_quoted_fields_with_commas_quotes_and_line_ends(tmp_path):
    text = 'label,text\n1,"good, ""really"" good"\n0,"bad\nand long"\n\n1,plain\n'
    table = read_table(written(tmp_path / "a.csv", text))
    rows = [["1", 'good, "really" good'], ["0", "bad\nand long"], ["1", "plain"]]
    assert [fields for _, fields in table.rows] == rows
    assert [number for number, _ in table.rows][:2] == [2, 3]


def test_json_lines_have_texts_and_numbers_and_keys_in_any_order(tmp_path):
    text = '{"text": "a\\tb", "label": 1, "score": 2.5}\n\n{"label": true, "score": 0, "text": "c", "more": []}\n'
    table = read_table(written(tmp_path / "a.jsonl", text))
    assert table.columns == ["text", "label", "score"]
    assert table.rows == [(1, ["a\tb", "1", "2.5"]), (3, ["c", "true", "0"])]


def test_a_file_without_header_has_the_columns_that_it_is_known_to_have(tmp_path):
    names = ("source", "label", "mark", "sentence")
    table = read_table(written(tmp_path / "a.tsv", "x\t1\t\tgood\ny\t0\t*\tbad\n"), headless=names)
    assert table.columns == list(names)
    assert table.rows == [(1, ["x", "1", "", "good"]), (2, ["y", "0", "*", "bad"])]
    table = read_table(written(tmp_path / "b.tsv", "index\tsentence\n0\tgood\n"), headless=names)
    assert table.rows == [(2, ["0", "good"])]


def test_broken_rows_are_skipped_and_counted_where_that_is_wanted(tmp_path):
    path = written(tmp_path / "a.tsv", "a\tb\n1\t2\n3\n4\t5\t6\n7\t8\n")
    table = read_table(path, skip_broken=True)
    assert (table.skipped, [fields for _, fields in table.rows]) == (2, [["1", "2"], ["7", "8"]])
    with pytest.raises(UserError, match="line 3: 1 fields, expected 2 as in its first line, with tabs"):
        read_table(path)


def test_columns_are_found_by_name(tmp_path):
    table = read_table(written(tmp_path / "a.tsv", "label\tb\ta\n1\t2\t3\n"))
    assert table.places(("a", "b")) == [2, 1]
    with pytest.raises(UserError, match=r"no column 'c', its columns are \['label', 'b', 'a'\]; expected a, c, with"):
        table.places(("a", "c"))
    twins = read_table(written(tmp_path / "b.tsv", "a\tb\ta\n1\t2\t3\n"))
    assert twins.places(("b",)) == [1]
    with pytest.raises(UserError, match="two columns have one name, 'a'; rename one"):
        twins.places(("a",))


def test_columns_that_nothing_reads_may_hold_anything_and_be_missing(tmp_path):
    text = '{"text": "a", "metadata": {}, "note": null}\n{"text": "b", "metadata": {"x": NaN}, "more": "\\ud800"}\n'
    path = written(tmp_path / "a.jsonl", text)
    assert [fields for _, fields in read_table(path, ("text",)).rows] == [["a", "{}", ""], ["b", '{"x": NaN}', ""]]
    with pytest.raises(UserError, match=r"line 1: 'metadata' is {}; expected text or a number"):
        read_table(path, ("text", "metadata"))
    with pytest.raises(UserError, match="line 2: no 'note' in it"):
        read_table(path, ("text", "note"), lists=("note",))


@pytest.mark.parametrize(
    ("name", "text", "names", "places", "rows"),
    [
        ("a.tsv", "good\t1\nbad\t0\n", ("1", "2"), [0, 1], 2),
        ("a.csv", "good,1\nbad,0\n", ("-2", "-1"), [0, 1], 2),
        ("a.csv", "1,good\n0,bad\n", ("2", "1"), [1, 0], 2),  # a field that is a number is no header
        ("a.csv", "0,1,2\nx,good,1\n", ("1", "2"), [1, 2], 1),  # the header that pandas writes
        ("a.csv", "text,2\ngood,1\n", ("text", "2"), [0, 1], 1),
        ("a.jsonl", '{"1": "good", "2": 1}\n', ("1", "2"), [0, 1], 1),
    ],
)
def test_a_file_without_header_names_its_columns_by_number(tmp_path, name, text, names, places, rows):
    table = read_table(written(tmp_path / name, text), names)
    assert (table.places(names), len(table.rows)) == (places, rows)
    assert Table(table.path, require_columns(table.path, names, ""), []).places(names) == places


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("1", "3"), r"no column '3', its columns are \['1', '2'\]; .*numbers of columns, in a file without a header"),
        (("-3",), "no column '0'"),
        (("1", "label"), r"no column '1', its columns are \['good', '1.0'\]; .*are given for all of them"),
        (("2", "-1"), "two columns have one name, '2'"),
    ],
)
def test_numbers_of_columns_that_are_not_there_are_refused(tmp_path, names, match):
    path = written(tmp_path / "a.tsv", "good\t1.0\n")
    with pytest.raises(UserError, match=match):
        require_columns(path, names, "--text_columns")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.tsv", "", "a.tsv is empty; expected an example in each row, with tabs"),
        ("a.jsonl", "\n", "a.jsonl is empty; expected an example in each row, with an object"),
        ("a.tsv", "a\tb\n", "no rows under its header"),
        ("a.json", '{"version": "1.1", "data": [{"title": "x"}]}', "'data' is .*; a file in SQuAD's format is for"),
        ("a.csv", 'a,b\n1,"2\n', "line 2: no CSV"),
        ("a.csv", "a,b\n1\n", "line 2: 1 fields, expected 2 .* commas"),
        ("a.jsonl", '{"a": 1}\nb\n', "line 2: no JSON"),
        ("a.jsonl", "[1]\n", "line 1: .*expected an object in each line"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', "line 2: no 'a' in it"),
        ("a.jsonl", '{"a": null}\n', "line 1: 'a' is None; expected text or a number"),
        ("a.jsonl", '{"a": "\\ud800"}\n', "line 1: 'a' is .*expected text or a number"),
        ("a.tsv", b"a\tb\ncaf\xe9\t1\n", r"line 2, .*not UTF-8"),
        ("a.csv", b"text\ncaf\xe9\n", "line 2, byte 8 of the text: the byte 0xe9"),
        # without flags that the command lacks, such as --bad_lines
        ("a.csv", b"text\ncaf\xe9\n", "predict, mine and score have --encoding latin-1\\), or mend the line$"),
        ("a.tsv.gz", gzip.compress(b"a\tb\ngood\t1\n" * 100, mtime=0)[:-9], "truncated or damaged"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DamagedData if name.endswith(".gz") else UserError, match=match):
        read_table(tmp_path / name)
    with pytest.raises(UserError, match="cannot read"):
        read_table(tmp_path / "absent.tsv")


@pytest.mark.parametrize(
    ("encoding", "content", "match"),
    [
        ("ascii", b"text,label\ncaf\xe9,1\n", "a.csv is not in the encoding of --encoding ascii: .*name another one"),
        ("utf-7", b"text,label\n+2AA-,x\n", r"line 2: by --encoding utf-7, character 1 is '\\ud800', half a character"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused(tmp_path, encoding, content, match):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=match):
        read_table(tmp_path / "a.csv", dialect=Dialect(encoding))


@pytest.mark.parametrize(("name", "encoding"), [("a.csv", "latin-1"), ("a.jsonl", "utf-8"), ("a.tsv", "utf-16")])
def test_a_table_is_read_in_blocks_whose_memory_does_not_grow_with_it(tmp_path, name, encoding):
    rows = [[str(number), "caf\xe9 " * 2000] for number in range(1600)]
    (tmp_path / name).write_text(table_text(Path(name), ["index", "text"], rows), encoding=encoding)
    tracemalloc.start()
    try:
        numbers = [
            fields[0]
            for table in table_blocks(tmp_path / name, dialect=Dialect(encoding), most=1)
            for _, fields in table.rows
        ]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert numbers == [row[0] for row in rows]
    assert peak < 8e6 < (tmp_path / name).stat().st_size


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tsv"])
def test_what_is_written_is_read_again(tmp_path, name):
    rows = [["0", 'a "b", c'], ["1", "d"], *([["2", "e\rf"], ["3", "g\r\nh\n"]] if name != "a.tsv" else [])]
    table = read_table(written(tmp_path / name, table_text(tmp_path / name, ["index", "text"], rows)))
    assert table.columns == ["index", "text"]
    assert [fields for _, fields in table.rows] == rows


def test_tabs_and_line_ends_within_a_written_tsv_field_become_blanks(tmp_path):
    assert table_text(Path("a.tsv"), ["x"], [["a\tb\nc"]]) == "x\na b c\n"
    kinds = [kind_of(Path(name)) for name in ("a.CSV.gz", "a.ndjson", "a.json.zst", "a.txt")]
    assert kinds == ["csv", "json", "json", "tsv"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("text\ngood\n\n", ["good"]),
        ("text\ngood\n\n\r\n  \n", ["good"]),
        ("text\ngood\n\nbad\n", ["good", "", "bad"]),
        ("text\rgood\r\r", ["good"]),
    ],
)
def test_blank_lines_at_the_end_of_tsv_are_no_rows(tmp_path, text, rows):
    table = read_table(written(tmp_path / "a.tsv", text))
    assert [fields for _, fields in table.rows] == [[row] for row in rows]


def test_blank_lines_at_the_end_of_wider_tsv_are_no_rows_but_others_are_refused(tmp_path):
    assert read_table(written(tmp_path / "a.tsv", "a\tb\n1\t2\n\t\n\n\n")).rows == [(2, ["1", "2"]), (3, ["", ""])]
    with pytest.raises(UserError, match="line 2: 1 fields, expected 2"):
        read_table(written(tmp_path / "b.tsv", "a\tb\n\n1\t2\n"))


@pytest.mark.parametrize("name", ["x.xlsx", "x.parquet", "x.tsv.gz", "x.XLS", "x.html"])
def test_a_table_is_not_written_to_a_name_of_another_format(name):
    with pytest.raises(UserError, match=rf"--output {name}: no table is written as \{Path(name).suffix}; expected"):
        require_table_name("--output", Path(name))
    for good in ("x", "x.tsv", "x.TXT", "x.csv", "x.jsonl", "x.json"):
        require_table_name("--output", Path(good))


def test_a_csv_may_have_semicolons_or_tabs(tmp_path):
    rows = [(2, ["good, really", "1"])]
    for separator in ";\t":
        text = separator.join(("text", "label")) + "\n" + separator.join(("good, really", "1")) + "\n"
        table = read_table(written(tmp_path / "a.csv", text))
        assert (table.columns, table.rows) == (["text", "label"], rows)
    table = read_table(written(tmp_path / "b.csv", '"text, long";label\ngood;1\n'))
    assert table.columns == ["text, long", "label"]
    assert read_table(written(tmp_path / "c.csv", "a;b,label\ngood,1\n")).columns == ["a;b", "label"]


def test_a_quoted_tsv_is_read_as_spreadsheets_and_pandas_write_it(tmp_path):
    path = written(tmp_path / "a.tsv", 'text\tlabel\n"good, ""really""\tgood"\t1\n"bad\nfilm"\t0\n')
    assert [fields for _, fields in read_table(path, dialect=Dialect(quoted=True)).rows] == [
        ['good, "really"\tgood', "1"],
        ["bad\nfilm", "0"],
    ]
    with pytest.raises(UserError, match=r"line 2: 3 fields, .* end with \.csv, or give --quoted_tsv where"):
        read_table(path)
    assert read_table(path.rename(tmp_path / "a.csv")).rows[1][1] == ["bad\nfilm", "0"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_a_file_of_another_encoding_is_read_where_it_is_named(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\r\ncaf\xe9,1\r\n".encode(encoding))
    assert read_table(path, dialect=Dialect(encoding)).rows == [(2, ["caf\xe9", "1"])]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_table(tmp_path / "b.csv.gz", dialect=Dialect(encoding)).columns == ["text", "label"]
