"""Reading: formats, documents, sections and bad input."""

import bz2
import gzip
import json
import lzma
import os
import tracemalloc

import pytest
import zstandard

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import split_source
from bert_horovod.corpus.reading.sources import BAD_LINES, NOT_TEXT, TOO_LONG, SourceReader
from bert_horovod.corpus.reading.text import CUT, SECTION_BYTES
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import source_of, texts_of

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}


def documents(path, mode="file", passed_over=None, **options):
    """The documents of a path, each a list of sections' texts; `passed_over` takes the last reader's."""
    texts = [[]]
    for source in find_sources([str(path)]):
        with SourceReader(source, **options) as reader:
            for section in read_sections(reader, mode):
                assert section.bytes == len(section.text.encode()) <= SECTION_BYTES
                texts[-1].append(section.text)
                if section.ends_document:
                    texts.append([])
        if passed_over is not None:
            passed_over.update(reader.passed_over)
    assert texts.pop() == []
    return texts


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_compression_gives_the_same_text(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix]("One  two\r\nthree.\n\n Four — é.".encode()))
    assert documents(path) == [["One two three.\nFour — é."]]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_concatenated_compressed_files_are_read_to_the_end(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"One.\n") + COMPRESS[suffix](b"Two.\n"))
    assert documents(path) == [["One. Two."]]


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_truncated_and_damaged_compressed_files_are_named(tmp_path, suffix):
    data = COMPRESS[suffix]("".join(f"Line {i * 7919 % 10007} of text.\n" for i in range(2000)).encode())
    path = tmp_path / f"a.txt{suffix}"
    for bad in (data[: len(data) // 2], data[:100] + bytes(64) + data[164:], b"not compressed at all"):
        path.write_bytes(bad)
        with pytest.raises(DamagedData, match=f"a.txt{suffix}.*(truncated|damaged)"):
            documents(path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("garbage", [b"no stream follows", b"BZ", b"\x01"])
def test_what_follows_compressed_data_and_is_none_is_not_taken_for_the_end(tmp_path, suffix, garbage):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"One.\n") + garbage)
    with pytest.raises(DamagedData, match=f"a.txt{suffix} is (truncated or )?damaged"):
        documents(path)


def test_a_wide_window_of_zstandard_is_read_and_one_too_wide_is_named(tmp_path):
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    data = bytearray(compressor.compress(b"One.\n") + compressor.flush())
    (tmp_path / "a.txt.zst").write_bytes(data)
    assert documents(tmp_path / "a.txt.zst") == [["One."]]
    assert data[5] == (28 - 10) << 3  # the frame's byte for the window
    data[5] = (32 - 10) << 3
    (tmp_path / "a.txt.zst").write_bytes(data)
    with pytest.raises(UserError, match=r"a.txt.zst was .* a window of 4,096 MiB; expected at most 2,048 MiB"):
        documents(tmp_path / "a.txt.zst")


@pytest.mark.parametrize("size", [7, 1000])
def test_a_line_may_be_a_paragraph_of_several_sentences(tmp_path, size):
    (tmp_path / "a.txt").write_text("A one. A two.\nA  three.\n\nB one.\n \n\nC one. " + "C two. " * 12_000)
    source = source_of(tmp_path / "a.txt")
    whole = documents(tmp_path / "a.txt", "paragraph_lines")
    assert whole[:2] == [["A one. A two.\nA three."], ["B one."]]
    assert len(whole[2]) == 2  # cut at a sentence's end
    assert all(section.endswith(".") for section in whole[2])
    pieces = split_source(source, "paragraph_lines", size)
    assert len(pieces) > 1
    assert texts_of(pieces, "paragraph_lines") == [text for document in whole for text in document]


def test_xz_streams_may_be_padded(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"One.\n") + bytes(8) + lzma.compress(b"Two.\n") + bytes(4))
    assert documents(tmp_path / "a.txt.xz") == [["One. Two."]]


def test_a_name_that_is_not_utf8_is_written_with_escapes(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("One.", encoding="utf-8")
    [source] = find_sources([str(tmp_path)])
    assert source.name == "caf\\xe9.txt"
    assert documents(tmp_path / name) == [["One."]]


def test_documents_of_each_format(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_text("\ufeffA one.\nA two.\n\n\nB one.\n \t\nC one.\nC two.", encoding="utf-8")
    assert documents(plain) == [["A one. A two.\nB one.\nC one. C two."]]
    assert documents(plain, "blank_line") == [["A one.\nA two."], ["B one."], ["C one.\nC two."]]
    lines = tmp_path / "b.jsonl.gz"
    of_datatrove = {"text": "A one.\nA two.\n\nA three.", "id": "<urn:1>", "metadata": {"url": "https://a.example/"}}
    rows = [of_datatrove, {"text": ""}, {"text": "B \ud83d one \ud83d\ude00."}]
    lines.write_bytes(gzip.compress(("\n\n".join(map(json.dumps, rows))).encode()))
    assert documents(lines) == [["A one. A two.\nA three."], [""], ["B \ufffd one \U0001f600."]]
    assert documents(lines, "blank_line")[0] == ["A one.\nA two.\nA three."]
    assert documents(lines, "paragraph_lines")[0] == ["A one.\nA two.\nA three."]


def test_inputs_are_files_directories_and_globs_each_file_once(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    names = [source.name for source in find_sources([str(tmp_path)])]
    assert names == ["a.txt", "b.txt", "sub/c.txt"]
    twice = find_sources([str(tmp_path / "*.txt"), str(tmp_path / "a.txt")])
    assert [source.name for source in twice] == ["a.txt", "b.txt"]
    with pytest.raises(UserError, match="no such file"):
        find_sources([str(tmp_path / "*.md")])


def test_long_documents_are_cut_at_paragraph_ends_and_long_paragraphs_at_sentence_ends(tmp_path):
    path = tmp_path / "a.txt"
    paragraphs = [f"Paragraph {i}. " + "word " * 2000 + "end." for i in range(30)]
    path.write_text("\n\n".join(paragraphs), encoding="utf-8")
    [sections] = documents(path)
    assert len(sections) > 3
    assert "\n".join(sections).split("\n") == paragraphs
    sentences = [f"Sentence {i} é." for i in range(60_000)]
    for separator in (" ", "\n"):
        path.write_text(separator.join(sentences), encoding="utf-8")
        [sections] = documents(path)
        assert all(section.endswith("é.") for section in sections)
        assert " ".join(sections).replace("\n", " ") == " ".join(sentences)


def test_memory_does_not_grow_with_a_file(tmp_path):
    path = tmp_path / "a.txt.gz"
    line = b"Some words and then a few more of them make a sentence.\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(5):
            file.write(line * 20_000)  # 6 MB without a blank line
    [source] = find_sources([str(path)])
    tracemalloc.start()
    with SourceReader(source) as reader:
        total = sum(section.bytes for section in read_sections(reader, "file"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 5e6
    assert peak < 10e6


GOOD = b'{"text": "Good."}\n'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"Good.\nBad \x00 byte.\n", "line 2, byte 10 of the text: a NUL byte"),
        ("a.txt", b"Good.\n\nBad \xff byte.\n", "line 3, byte 11 of the text: the byte 0xff"),
        ("a.txt", b"Good.\nCut \xe4\xb8", "line 2, byte 10"),
        ("a.jsonl", GOOD + b"{", "line 2: not JSON"),
        ("a.jsonl", GOOD + b"[1]", "line 2: a list instead of an object"),
        ("a.jsonl", GOOD + b'{"body": "x"}', 'line 2: no field "text"'),
        ("a.jsonl", GOOD + b'{"text": 3}', "line 2: a int in the field"),
    ],
)
def test_a_text_that_is_no_text_is_refused_with_its_place(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}, {message}"):
        documents(tmp_path / name)


@pytest.mark.parametrize("word", ["word ", "w", "語", "é w"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("mode", ["file", "blank_line"])
def test_a_sentence_without_an_end_is_cut_and_nothing_of_it_is_lost(tmp_path, word, name, mode):
    endless = word * (300_000 // len(word.encode()))
    text = f"Before.\n\n{endless}\n\nAfter."
    (tmp_path / name).write_text(json.dumps({"text": text}) if name == "a.jsonl" else text, encoding="utf-8")
    counts = {}
    joined = "\n".join(section for document in documents(tmp_path / name, mode, counts) for section in document)
    assert "".join(joined.split()) == "".join(text.split())
    assert (" " in word) == (joined.replace("\n", " ").split() == text.split())  # cut between words
    assert counts == {CUT: 1}


def test_lines_without_an_end_are_cut_before_they_fill_the_memory(tmp_path):
    (tmp_path / "a.txt").write_text("So.\n" + "word\n" * 300_000, encoding="utf-8")
    counts = {}
    [sections] = documents(tmp_path / "a.txt", passed_over=counts)
    assert " ".join(sections).split() == ["So.", *["word"] * 300_000]
    assert counts[CUT] > 3


BAD = (b"{", b"[1]", b'{"text": null}', b'{"text": "\xff"}', b'{"text": "a\0"}')


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_stops_among_the_first_thousand_and_is_passed_over_and_counted_after_them(tmp_path, suffix, bad):
    path = tmp_path / f"a.jsonl{suffix}"
    good = [b'{"text": "Line %d."}' % i for i in range(1500)]

    def write(at):
        path.write_bytes(COMPRESS[suffix](b"\n".join([*good[:at], bad, *good[at:]])))

    write(999)
    with pytest.raises(UserError, match=r"line 1000.*--bad_lines skip"):
        documents(path, bad_lines=None)
    write(1000)
    counts = {}
    texts = documents(path, bad_lines=None, passed_over=counts)
    assert texts == [[f"Line {i}."] for i in range(1500)]
    assert (list(counts.values()), set(counts) < set(BAD_LINES)) == ([1], True)
    with pytest.raises(UserError, match="line 1001"):
        documents(path, bad_lines="stop")
    write(0)
    assert len(documents(path, bad_lines="skip")) == 1500


def test_a_bad_line_of_plain_text_is_left_out_alone(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One is\n\xff bad\nhere.\n\nTwo.\n")
    counts = {}
    assert documents(tmp_path / "a.txt", bad_lines="skip", passed_over=counts) == [["One is here.\nTwo."]]
    assert counts == {NOT_TEXT: 1}


def test_an_enormous_line_is_passed_over_and_the_next_is_read(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "One."}\n{"text": "')
        for _ in range(70):
            file.write(b"word. " * 200_000)  # 84 MB
        file.write(b'"}\n{"text": "Two."}\n')
    counts = {}
    assert documents(path, bad_lines="skip", passed_over=counts) == [["One."], ["Two."]]
    assert counts == {TOO_LONG: 1}


def test_the_text_is_in_the_field_that_the_user_names(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "Good."}\n', encoding="utf-8")
    assert documents(tmp_path / "a.jsonl", text_field="content") == [["Good."]]
    with pytest.raises(UserError, match=r"no field \"text\", its fields are \['content'\].*--text_field"):
        documents(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"article": {"abstract": "Good.", "id": 1}, "a.b": "Bad."}\n')
    assert documents(tmp_path / "a.jsonl", text_field="article.abstract") == [["Good."]]
    assert documents(tmp_path / "a.jsonl", text_field="a.b") == [["Bad."]]
    for field, found in (("article.body", "no field"), ("article.id", "a int in the field"), ("a.b.c", "no field")):
        with pytest.raises(UserError, match=f'{found} "{field}"'):
            documents(tmp_path / "a.jsonl", text_field=field)


def test_a_pipe_among_the_inputs_is_named_and_not_waited_for(tmp_path):
    (tmp_path / "a.txt").write_text("Good.", encoding="utf-8")
    os.mkfifo(tmp_path / "b.txt")
    for path in (tmp_path, tmp_path / "b.txt", tmp_path / "*.txt", "/dev/zero"):
        with pytest.raises(UserError, match=r"(b\.txt|/dev/zero) is not a regular file.*--input -"):
            find_sources([str(path)])


def test_an_enormous_line_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b"word. " * 200_000)  # 120 MB
    with pytest.raises(UserError, match="line 1: longer than 64 MiB"):
        documents(path)


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_lines_may_end_with_cr_alone(tmp_path, compression):
    text = b"First one .\rThird of first .\r\rAnother one .\r\rLast document .\rIts end .\r"
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(gzip.compress(text) if compression else text)
    expected = [["First one .\nThird of first ."], ["Another one ."], ["Last document .\nIts end ."]]
    assert documents(path, "blank_line") == expected
    assert documents(path) == [["First one . Third of first .\nAnother one .\nLast document . Its end ."]]


def test_cr_within_lines_that_end_otherwise_is_a_blank(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One\rtwo.\nThree.\r\n\r\nFour.")
    assert documents(tmp_path / "a.txt", "blank_line") == [["One two.\nThree."], ["Four."]]


def test_parts_of_a_text_with_cr_line_ends_hold_every_document_once(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"".join(b"Document %d .\rIts end .\r\r" % i for i in range(100)))
    pieces = split_source(source_of(tmp_path / "a.txt"), "blank_line", 333)
    assert texts_of(pieces, "blank_line") == [f"Document {i} .\nIts end ." for i in range(100)]
