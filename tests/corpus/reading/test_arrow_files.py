"""Parquet and Arrow files: the same documents as JSON Lines, however they are cut; what is wrong is named."""

import json
import sys

import pytest

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import Piece, piece_reader, split_source
from bert_horovod.corpus.reading.sources import ROW_NO_TEXT, ROW_NOT_TEXT
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import documents as of_reader
from tests.corpus.reading.documents import source_of

pa = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra parquet")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, the extra parquet")

TEXTS = [f"Text é{i}. And so on.\n\nMore of {i}." for i in range(200)]
ROWS = {"id": list(range(200)), "title": [f"T{i}" for i in range(200)], "text": TEXTS}


def write(path, columns=ROWS, rows=7, kind="parquet"):
    """Write a table in row groups (or record batches) of so many rows."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def save_dataset(directory, kind="stream", splits=("train",)):
    """What `save_to_disk` of datasets writes: a directory a split, its Arrow files named by its state.json."""
    for split in splits:
        (directory / split).mkdir(parents=True)
        write(directory / split / "data-00000-of-00001.arrow", kind=kind)
        write(directory / split / "cache-0123456789abcdef.arrow", {"text": ["A leftover."]}, kind=kind)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_format_type": None}
        (directory / split / "state.json").write_text(json.dumps(state))
        (directory / split / "dataset_info.json").write_text('{"description": ""}')
    (directory / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return directory


def documents(source, piece=None, passed_over=None, skip=0, **options):
    """[(title, text)] of a source, or of a piece of it."""
    reader = piece_reader(piece or Piece(source, 0, source.bytes), **options)
    found = of_reader(reader, "file", skip)
    if passed_over is not None:
        passed_over.update(reader.passed_over)
    return found


EXPECTED = [(f"T{i}", f"Text é{i}. And so on.\nMore of {i}.") for i in range(200)]


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "parquet"), ("a.arrow", "stream"), ("a.arrow", "file")])
def test_pieces_of_any_size_hold_every_row_once_and_in_order(tmp_path, name, kind):
    source = source_of(write(tmp_path / name, kind=kind))
    assert documents(source) == EXPECTED
    for size in (97, 1000, source.bytes // 3, source.bytes + 1):
        pieces = split_source(source, "file", size)
        assert len(pieces) == -(-source.bytes // size)
        parts = [documents(source, piece) for piece in pieces]
        assert sum(parts, []) == EXPECTED  # noqa: RUF017
    assert sum(map(bool, parts)) == 1
    half = documents(source, Piece(source, source.bytes // 2, source.bytes))
    assert documents(source, Piece(source, source.bytes // 2, source.bytes), skip=3) == half[3:]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_columns_are_found_by_name_whatever_their_order_type_and_compression(tmp_path, compression):
    table = pa.table(
        {
            "title": pa.array(["A", None, "C"], pa.large_string()),
            "body": pa.array(["One.", "Two.", "One."]).dictionary_encode(),
            "text": [1, 2, 3],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", compression=compression)
    source = source_of(tmp_path / "a.parquet")
    assert documents(source, text_field="body") == [("A", "One."), ("", "Two."), ("C", "One.")]
    for field, problem in (("text", "column 'text' of the type int64"), ("contents", "no column 'contents'")):
        with pytest.raises(UserError, match=rf"{problem}; expected .*--text_field NAME.*'body'"):
            documents(source, text_field=field)


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "parquet"), ("a.arrow", "stream"), ("a.arrow", "file")])
def test_text_may_be_in_bytes_and_within_other_columns(tmp_path, name, kind):
    articles = [{"id": 1, "abstract": "One."}, {"id": 2, "abstract": "Two."}, None]
    columns = {"title": [b"A", None, b"C"], "text": ["Één.".encode(), b"\xff", b"Drie."], "article": articles}
    source = source_of(write(tmp_path / name, columns, rows=2, kind=kind))
    passed_over = {}
    rows = documents(source, bad_lines="skip", passed_over=passed_over)
    assert (rows, passed_over) == ([("A", "Één."), ("C", "Drie.")], {ROW_NOT_TEXT: 1})
    rows = documents(source, bad_lines="skip", text_field="article.abstract")
    assert rows == [("A", "One."), ("", "Two.")]
    with pytest.raises(UserError, match=r"no column 'article.body'; .*one of \['title', 'text', 'article.abstract'\]"):
        documents(source, text_field="article.body")
    source = source_of(write(tmp_path / name, {"title": [{"rendered": "One."}, {"rendered": "Two."}]}, kind=kind))
    assert documents(source, text_field="title.rendered") == [("", "One."), ("", "Two.")]


def test_notes_beside_parquet_are_passed_over(tmp_path, capsys):
    for name in ("part-00000.snappy.parquet", "part-00001.snappy.parquet"):
        write(tmp_path / name, {"text": [name]})
    for name in ("_metadata", "_common_metadata"):
        pq.write_metadata(pa.schema({"text": pa.string()}), tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "_temporary").mkdir()
    write(tmp_path / "_temporary" / "part-00001.snappy.parquet", {"text": ["Twice."]})
    for pattern in (tmp_path, tmp_path / "*"):
        texts = [text for source in find_sources([str(pattern)]) for _, text in documents(source)]
        assert texts == ["part-00000.snappy.parquet", "part-00001.snappy.parquet"]
        assert "passing over 3 files" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_dataset_that_was_saved_is_read_without_its_leftovers(tmp_path, kind):
    sources = find_sources([str(save_dataset(tmp_path / "set", kind, ("test", "train")))])
    assert [source.name for source in sources] == ["test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]
    assert documents(sources[1]) == EXPECTED


@pytest.mark.parametrize("state", ["{", "[]", '{"_data_files": 3}'])
def test_a_dataset_whose_state_is_damaged_is_named(tmp_path, state):
    (save_dataset(tmp_path / "set") / "train" / "state.json").write_text(state)
    with pytest.raises(DamagedData, match=r"state\.json cannot be read"):
        find_sources([str(tmp_path / "set")])


def test_a_dataset_that_is_a_selection_is_refused_as_its_rows_are_not_what_its_files_hold(tmp_path):
    state = {"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}
    (save_dataset(tmp_path / "set") / "train" / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="flatten_indices"):
        find_sources([str(tmp_path / "set")])


def test_rows_without_text_are_bad_lines(tmp_path):
    invalid = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"\xffOK")]
    )
    table = pa.table({"text": pa.chunked_array([["Good."], [None, ""], invalid], pa.string())})
    counts = {}
    source = source_of(write(tmp_path / "a.parquet", table))
    assert documents(source, passed_over=counts, bad_lines="skip") == [("", "Good."), ("", ""), ("", "OK")]
    assert counts == {ROW_NO_TEXT: 1, ROW_NOT_TEXT: 1}
    with pytest.raises(UserError, match=r"a\.parquet, row 2: no value; .*--bad_lines skip"):
        documents(source, bad_lines=None)
    late = pa.table({"text": ["Good."] * 1000 + [None]})
    assert len(documents(source_of(write(tmp_path / "b.parquet", late, 100)), bad_lines=None)) == 1000


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "parquet"), ("a.arrow", "stream"), ("a.arrow", "file")])
def test_a_file_that_is_cut_or_no_such_file_is_named(tmp_path, name, kind):
    path = write(tmp_path / name, kind=kind)
    data = path.read_bytes()
    for bad in (data[: len(data) // 2], b"", b"no such file at all"):
        path.write_bytes(bad)
        with pytest.raises(DamagedData, match=rf"{name} is truncated or damaged"):
            documents(source_of(path))


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"a\.parquet needs pyarrow.*\[parquet\]"):
        documents(source_of(path))


def test_memory_does_not_grow_with_a_row_group(tmp_path):
    pa.set_cpu_count(1)
    peaks = []
    for rows in (2_000, 20_000):
        table = pa.table({"text": [f"{i} " + "Some words, then more of them. " * 100 for i in range(rows)]})
        write(tmp_path / "a.parquet", table, rows)
        del table
        source = source_of(tmp_path / "a.parquet")
        pool = pa.default_memory_pool()
        begin, peak = pool.bytes_allocated(), 0
        with piece_reader(Piece(source, 0, source.bytes)) as reader:
            for _ in read_sections(reader, "file"):
                peak = max(peak, pool.bytes_allocated() - begin)
        peaks.append(peak)
    assert peaks[1] < 2 * peaks[0] + 4e6
