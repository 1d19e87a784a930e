"""Sequences: FASTA is read whole, in pieces too, and what is none is refused."""

import gzip
import json
import random

import numpy as np
import pytest

from bert_horovod.corpus.reading import sources
from bert_horovod.corpus.reading.pieces import split_source
from bert_horovod.corpus.reading.sequences import parse_split
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.text import SECTION_BYTES
from bert_horovod.errors import UserError
from tests.corpus.reading.documents import documents, source_of, texts_of

FASTA = b"""
>one the first
ACGTnnac

gt
>empty
> two>2
AC-G*
>last
TT"""
RECORDS = [("one the first", "ACGTNNACGT"), ("empty", ""), ("two>2", "AC-G*"), ("last", "TT")]


def read(path, data, split="letters", skip=0):
    return documents(SourceReader(source_of(path, data)), split, skip)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(FASTA, id="as it is"),
        pytest.param(FASTA.replace(b"\n", b"\r\n"), id="Windows line ends"),
        pytest.param(FASTA.replace(b"\n", b"\r"), id="old Macs' line ends"),
        pytest.param(b"\xef\xbb\xbf" + FASTA.strip(), id="byte order mark"),
        pytest.param(FASTA + b"\n\n", id="blank lines at the end"),
    ],
)
def test_a_record_is_a_document_of_joined_upper_case_lines(tmp_path, data):
    assert read(tmp_path / "a.fa", data) == RECORDS
    assert read(tmp_path / "b.fa.gz", gzip.compress(data)) == RECORDS
    assert read(tmp_path / "a.fa", data, skip=1) == RECORDS[1:]


def test_each_record_is_in_one_piece_however_the_file_is_cut(tmp_path, monkeypatch):
    source = source_of(tmp_path / "a.fa", FASTA.strip())
    for block_bytes in (1, 2, 5, 1 << 20):
        monkeypatch.setattr(sources, "BLOCK_BYTES", block_bytes)
        for size in range(1, source.bytes + 2):
            pieces = split_source(source, "2", size)
            assert [text for piece in pieces for text in texts_of([piece], "2")] == [text for _, text in RECORDS]


@pytest.mark.parametrize("line", [60, 1 << 30])
def test_a_long_sequence_is_read_in_parts_of_whole_tokens(tmp_path, line):
    letters = "".join(random.Random(0).choices("ACGT", k=3 * SECTION_BYTES))
    text = "\n".join(letters[begin : begin + line] for begin in range(0, len(letters), line))
    parts = texts_of(split_source(source_of(tmp_path / "a.fa", f">a\n{text}\n".encode()), "7", 1 << 30), "7")
    assert "".join(parts) == letters
    assert len(parts) == 4
    assert {len(part) for part in parts[:-1]} == {SECTION_BYTES // 7 * 7}


def test_a_line_of_json_is_a_sequence_too(tmp_path):
    lines = [{"text": "acgt\nACG", "title": "one"}, {"text": "Is this DNA?"}]
    path = tmp_path / "a.jsonl"
    assert read(path, json.dumps(lines[0]).encode()) == [("one", "ACGTACG")]
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: '\?' is letter 10; expected letters, \* or -: --split is"):
        read(path, "\n".join(map(json.dumps, lines)).encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"Once upon a time.\n>a\nACGT",
            r"a\.fa begins with 'Once upon a time\.'; expected FASTA with --split: a line >N",
        ),
        (b"LOCUS\n1 acgt", "expected FASTA"),
        (b">a\nACGT\nAC1GT", r"a\.fa, >a: '1' is letter 7; expected letters, \* or -"),
        (b">a\nAC\n;note\nGT", "';' is letter 3"),
        (">a\nACé".encode(), "'é' is letter 3"),
        (b">a\nAC\xff", "is letter 3"),
        (b">a\n" + b"A" * 70_000 + b".", "'.' is letter 70,001"),
        (b">" + b"a" * (3 << 20) + b"\nAC", "the name of a sequence is longer than 1 MiB"),
    ],
)
def test_what_is_no_sequence_is_refused(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.fa", data)


@pytest.mark.parametrize("name", ["a.xml", "a.warc.wet"])
def test_dumps_and_web_pages_are_no_sequences(tmp_path, name):
    with pytest.raises(UserError, match=rf"{name}: its texts are prose; expected FASTA, JSON Lines or a table with"):
        read(tmp_path / name, b"<mediawiki>")


def test_compressed_fasta_of_another_name_is_told(tmp_path):
    with pytest.raises(UserError, match=r"a\.fa is compressed, which its name does not say .* ends with \.gz"):
        read(tmp_path / "a.fa", gzip.compress(FASTA))


def test_fasta_without_split_is_refused_and_prose_that_quotes_is_not(tmp_path):
    for data in (b">chr1\nACGTNNNNNNNNACGTACGTACGT\nACGT", b">p\r\nmktayiakqrqisfvkshfsrq\r\n"):
        with pytest.raises(
            UserError, match=r"a\.txt is FASTA \(it begins with '>.*expected --split letters, or --split K"
        ):
            read(tmp_path / "a.txt", data, "file")
    assert read(tmp_path / "a.txt", b">I said:\nThis is an answer to what you said.", "blank_line")


def test_what_split_may_be():
    assert [parse_split(given) for given in ("letters", "1", "6", "16")] == ["letters", "letters", "6", "16"]
    for given in ("", "0", "17", "words", "-3", "6.0", "٣"):
        with pytest.raises(UserError, match="expected letters, or the letters of a k-mer, 1 to 16"):
            parse_split(given)


def test_letters_come_out_as_they_lie_in_the_file(tmp_path):
    sequence = np.random.default_rng(0).choice(list(b"ACGTacgt\n"), 300_000).astype(np.uint8).tobytes()
    expected = sequence.replace(b"\n", b"").decode().upper()
    assert "".join(text for _, text in read(tmp_path / "a.fa", b">a\n" + sequence)).replace("\n", "") == expected
