"""Pieces of one file: together they hold every document once, wherever they are cut."""

import bz2
import gzip
import json
from collections import Counter
from itertools import accumulate

import pytest

from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import Piece, piece_reader, split_source
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import documents, dump, page, source_of

JSON_LINES = "\n\n".join(json.dumps({"text": f"Text é{i}. " * (i % 5), "title": f"T{i}"}) for i in range(12))
BLANK_LINES = "\n".join(f"Satz é{i}.\nZwei.{blank}" for i, blank in enumerate(["\n", "\n\n\n", "\n \t\n", "\n"] * 3))
PAGES = [page(f"Ant {i} é", f"Text <{i}> [[a]] &amp; é. " * (i % 7), redirect="B" * (i % 4 == 3)) for i in range(14)]
DUMP = dump(*PAGES)


def check_every_piece_size(source, mode, sizes):
    all_documents = documents(SourceReader(source), mode)
    assert len(all_documents) > 9
    for size in sizes:
        pieces = split_source(source, mode, size)
        assert len(pieces) == -(-source.bytes // size)
        assert [piece.begin for piece in pieces] == list(range(0, source.bytes, size))
        parts = [documents(piece_reader(piece), mode) for piece in pieces]
        assert sum(parts, []) == all_documents, size  # noqa: RUF017


def streams(data, cuts):
    """The data as a bz2 file of several streams, cut at these bytes."""
    ends = [*cuts, len(data)]
    return b"".join(bz2.compress(data[begin:end]) for begin, end in zip([0, *cuts], ends, strict=True))


SIZES = [1, 2, 3, 7, 30, 31, 64, 100, 257, 10_000]


@pytest.mark.parametrize(
    ("name", "text", "mode"),
    [
        ("a.jsonl", JSON_LINES + "\n", "blank_line"),
        ("a.jsonl", JSON_LINES.replace("\n", "\r\n") + "\r\n\r\n", "file"),
        ("a.jsonl", "\ufeff\n\n" + JSON_LINES, "file"),
        ("a.txt", BLANK_LINES, "blank_line"),
        ("a.txt", BLANK_LINES.rstrip(), "blank_line"),
        ("a.txt", "\ufeff\n\n" + BLANK_LINES + "\n\n", "blank_line"),
        ("a.txt", BLANK_LINES.replace("\n", "\r\n"), "blank_line"),
    ],
)
def test_lines_and_blank_lines_can_be_cut_at_any_byte(tmp_path, name, text, mode):
    check_every_piece_size(source_of(tmp_path / name, text.encode()), mode, SIZES)


def test_a_plain_dump_can_be_cut_at_any_byte(tmp_path):
    check_every_piece_size(source_of(tmp_path / "a.xml", DUMP), "file", [29, 64, 101, 1000, 10_000])


def test_the_cuts_of_a_plain_dump_around_its_tags(tmp_path):
    source = source_of(tmp_path / "a.xml", dump(*PAGES[:4]))
    all_documents = documents(SourceReader(source), "file")
    for cut in range(1, source.bytes):
        first, second = (Piece(source, *ends) for ends in ((0, cut), (cut, source.bytes)))
        assert documents(piece_reader(first), "file") + documents(piece_reader(second), "file") == all_documents


@pytest.mark.parametrize("step", [50, 199, 997])
def test_a_dump_of_many_streams_can_be_cut_at_any_byte_and_pages_may_span_streams(tmp_path, step, monkeypatch):
    # Streams begin across the blocks that are searched.
    monkeypatch.setattr("bert_horovod.corpus.reading.pieces.BLOCK_BYTES", 16)
    source = source_of(tmp_path / "a.xml.bz2", streams(DUMP, range(step, len(DUMP), step)))
    check_every_piece_size(source, "file", [97, 150, 1000, 100_000])


def test_streams_may_begin_anywhere_in_a_tag(tmp_path):
    begin = DUMP.index(b"</page>", len(DUMP) // 2) - 3
    for cut in range(begin, begin + 30):
        source = source_of(tmp_path / "a.xml.bz2", streams(DUMP, [100, cut]))
        ends = list(accumulate(len(streams(part, [])) for part in (DUMP[:100], DUMP[100:cut], DUMP[cut:])))
        pieces = [Piece(source, 0, ends[1]), Piece(source, ends[1], ends[2])]
        parts = [documents(piece_reader(piece), "file") for piece in pieces]
        assert parts[0] + parts[1] == documents(SourceReader(source), "file")
        first_page = f"<page>\n    <title>{parts[1][0][0]}".encode()
        assert DUMP.index(first_page) >= cut > DUMP.index(f"<title>{parts[0][-1][0]}".encode()) - 10


def test_empty_streams_and_trailing_ones_hold_nothing(tmp_path):
    data = bz2.compress(b"") + streams(DUMP, [1000]) + bz2.compress(b"") + bz2.compress(b"\n")
    check_every_piece_size(source_of(tmp_path / "a.xml.bz2", data), "file", [20, 64, 5000])


def test_a_dump_as_wikimedia_packs_it_is_shared_without_reading_it_twice(tmp_path):
    heads = [DUMP.index(item.encode()) for item in PAGES[::2]]
    source = source_of(tmp_path / "a.xml.bz2", streams(DUMP, heads))
    all_documents = documents(SourceReader(source), "file")
    size = source.bytes // 3 + 1
    parts = [documents(piece_reader(piece), "file") for piece in split_source(source, "file", size)]
    assert [len(part) > 0 for part in parts] == [True] * 3
    assert sum(parts, []) == all_documents  # noqa: RUF017


@pytest.mark.parametrize(
    ("name", "data", "mode"),
    [
        ("a.txt", BLANK_LINES.encode(), "file"),
        ("a.txt.gz", gzip.compress(BLANK_LINES.encode()), "blank_line"),
        ("a.jsonl.gz", gzip.compress(JSON_LINES.encode()), "file"),
        ("a.jsonl.bz2", streams(JSON_LINES.encode(), [100]), "file"),
        ("a.xml.bz2", bz2.compress(DUMP), "file"),
        ("a.xml.bz2", bz2.compress(DUMP)[:-30], "file"),
        ("a.xml.bz2", b"no bz2 at all", "file"),
        ("a.xml.bz2", bz2.compress(DUMP) + b"BZh9 is not a stream", "file"),
        ("a.xml.gz", gzip.compress(DUMP), "file"),
        ("a.jsonl", b"", "file"),
    ],
    ids=lambda value: f"{len(value)}_bytes" if isinstance(value, bytes) else value,
)
def test_what_cannot_be_cut_is_one_piece_with_a_hash(tmp_path, name, data, mode):
    source = source_of(tmp_path / name, data)
    assert split_source(source, mode, 10) == [Piece(source, 0, len(data))]
    with piece_reader(Piece(source, 0, len(data))) as reader:
        assert len(reader.sha256()) == 64


def test_a_first_stream_that_is_too_long_to_look_at_is_taken_for_the_only_one(tmp_path, monkeypatch):
    source = source_of(tmp_path / "a.xml.bz2", streams(DUMP, [1000]))
    assert len(split_source(source, "file", 100)) > 1
    monkeypatch.setattr("bert_horovod.corpus.reading.compression._FIRST_STREAM_BYTES", 50)
    assert len(split_source(source, "file", 100)) == 1


def test_a_part_has_no_hash_and_reads_little_more_than_itself(tmp_path):
    lines = "".join(json.dumps({"text": "word. " * 100}) + "\n" for _ in range(20_000))
    source = source_of(tmp_path / "a.jsonl", lines.encode())
    with piece_reader(Piece(source, 1 << 20, 2 << 20)) as reader:
        assert 1500 < sum(1 for _ in read_sections(reader, "file")) < 2000
        assert reader.bytes_read < 4 << 20
        with pytest.raises(ValueError, match="no hash"):
            reader.sha256()


def test_skipping_in_a_part_is_exact(tmp_path):
    for name, data, mode in [
        ("a.jsonl", JSON_LINES.encode(), "file"),
        ("a.txt", BLANK_LINES.encode(), "blank_line"),
        ("a.xml.bz2", streams(DUMP, [1000, 1500]), "file"),
    ]:
        source = source_of(tmp_path / name, data)
        piece = Piece(source, source.bytes // 3, source.bytes)
        all_documents = documents(piece_reader(piece), mode)
        assert len(all_documents) > 3
        for skip in range(len(all_documents) + 1):
            with piece_reader(piece) as reader:
                ends = [section.ends_document for section in read_sections(reader, mode, skip)]
            assert sum(ends) == len(all_documents) - skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_bad_lines_are_counted_once_wherever_the_file_is_cut_and_reading_goes_on(tmp_path, name):
    good = JSON_LINES.split("\n") if name == "a.jsonl" else BLANK_LINES.split("\n")
    lines = [line.encode() for line in good]
    lines[3::7] = [b"\xff bad", *lines[3::7][1:]]
    lines[9:9] = [b"\0", b"\xff"]
    source = source_of(tmp_path / name, b"\n".join(lines))

    def read(pieces, skip=0):
        so_far, counts = [], Counter()
        for piece in pieces:
            with piece_reader(piece, bad_lines="skip") as reader:
                for section in read_sections(reader, "blank_line", skip):
                    so_far.append(section)
                    yield so_far, counts + reader.passed_over
            counts += reader.passed_over
        yield so_far, counts

    *steps, (all_sections, counts) = read([Piece(source, 0, source.bytes)])
    steps = [count.total() for _, count in steps]
    assert (len(all_sections) > 9, counts.total()) == (True, 3)
    for size in (5, 31, 100):
        *_, so_far = read(split_source(source, "blank_line", size))
        assert so_far == (all_sections, counts)
    for skip in range(1, len(all_sections)):
        *_, (so_far, rest) = read([Piece(source, 0, source.bytes)], skip)
        assert (so_far, rest.total()) == (all_sections[skip:], 3 - steps[skip - 1])


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("a.jsonl", b'{"text": 3}\n', "byte {at}: a int in the field"),
        ("a.jsonl", b'{"text": "\xff"}\n', "byte .*: the byte 0xff"),
        ("a.txt", b"Bad \0.\n", "byte {at}, byte .*: a NUL byte"),
    ],
)
def test_mistakes_in_a_part_are_named_by_their_byte(tmp_path, name, bad, message):
    good = b'{"text": "Good."}\n' if name == "a.jsonl" else b"\nGood.\n"
    source = source_of(tmp_path / name, good * 100 + bad + good * 100)
    begin = 50 * len(good)
    with pytest.raises(UserError, match=rf"{name}, {message.format(at=100 * len(good))}"):
        documents(piece_reader(Piece(source, begin, source.bytes)), "blank_line")


def test_a_dump_that_ends_early_is_noticed_by_the_part_that_needs_the_rest(tmp_path):
    data = DUMP[: DUMP.rindex(b"</page>")]
    cut = data.index(PAGES[12].encode())
    source = source_of(tmp_path / "a.xml.bz2", streams(data, [1000, cut]))
    begin = source.bytes - len(streams(data[cut:], []))
    first, second = Piece(source, 0, begin), Piece(source, begin, source.bytes)
    assert documents(piece_reader(first), "file")
    with pytest.raises(DamagedData, match="page 'Ant 13 é': the dump ends in the middle of this page"):
        documents(piece_reader(second), "file")
    source.path.write_bytes(source.path.read_bytes()[:-8])
    with pytest.raises(DamagedData, match="truncated or damaged"):
        documents(piece_reader(second), "file")
