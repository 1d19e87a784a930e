"""GLUE's files are read to the letter, and a file that is none is refused by what is wrong."""

import gzip

import pytest

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.finetuning.glue import TASKS, GlueTask, read_split

SST2 = TASKS["sst2"]
PAIRS = GlueTask("RTE", ("sentence1", "sentence2"), "label", {"entailment": "entailment", "not_entailment": "other"})


def refuse(directory, match: str, error: type[Exception] = UserError, split: str = "train") -> None:
    with pytest.raises(error, match=match):
        read_split(directory, SST2, split)


def test_quotes_are_text_and_characters_that_other_readers_take_for_line_ends_too(tmp_path):
    text = 'sentence\tlabel\n"an open quote\t1\nit \'s "fine" \t0\na\u2028b\x85c\x0cd\t1\n'
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    texts, labels = read_split(tmp_path, SST2, "train")
    assert texts == (['"an open quote', 'it \'s "fine" ', "a\u2028b\x85c\x0cd"],)
    assert labels == [1, 0, 1]


def test_compressed_files_line_ends_of_windows_and_a_byte_order_mark_are_read(tmp_path):
    text = "\ufeffsentence\tlabel\r\ngood\t1\r\nbad\t0\r\n"
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_split(tmp_path, SST2, "dev") == ((["good", "bad"],), [1, 0])


def test_columns_go_by_name_and_pairs_have_two_texts(tmp_path):
    (tmp_path / "train.tsv").write_text(
        "label\tindex\tsentence2\tsentence1\nentailment\t0\tB\tA\nnot_entailment\t1\tD\tC\n", encoding="utf-8"
    )
    assert read_split(tmp_path, PAIRS, "train") == ((["A", "C"], ["B", "D"]), [0, 1])


def test_a_missing_file_is_refused(tmp_path):
    refuse(tmp_path, r"has no train\.tsv or train\.tsv\.gz; expected the directory SST-2")
    refuse(tmp_path / "absent", r"has no dev\.tsv", split="dev")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"no column 'sentence', its first line is \[\]"),
        ("index\tsentence\n0\tgood\n", r"no column 'label', its first line is \['index', 'sentence'\]"),
        ("sentence,label\ngood,1\n", r"no column 'sentence'.*tabs between the columns"),
        ("sentence\tlabel\n", "no rows under its header"),
        ("sentence\tlabel\ngood\t1\nbad\n", "line 3: 1 fields between tabs, expected 2"),
        ("sentence\tlabel\ngood\t1\n\n", "line 3: 1 fields between tabs, expected 2"),
        ("sentence\tlabel\ngood\t2\n", "line 2: the label is '2', expected 0 or 1"),
        ("sentence\tlabel\ngood\t\n", "line 2: the label is '', expected 0 or 1"),
    ],
)
def test_a_file_that_is_not_as_glues_is_refused(tmp_path, text, match):
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    refuse(tmp_path, match)


def test_bytes_that_are_no_utf8_and_damaged_compression_are_refused(tmp_path):
    (tmp_path / "train.tsv").write_bytes("sentence\tlabel\ncaf\xe9\t1\n".encode("latin-1"))
    refuse(tmp_path, "line 2, .*not UTF-8")
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\ngood\t1\n" * 100)[:-9])
    refuse(tmp_path, "truncated or damaged", DamagedData, "dev")


def test_the_real_files_have_as_many_rows_as_glue_says(shared_data):
    train, dev = (read_split(shared_data / "finetune" / "glue" / "SST-2", SST2, split) for split in ("train", "dev"))
    assert (len(train.labels), len(dev.labels)) == (67349, 872)
    assert (sum(dev.labels), sum(train.labels)) == (444, 37569)
