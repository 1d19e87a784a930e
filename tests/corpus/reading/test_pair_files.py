"""Files of minimal pairs: their forms, their groups, and which pairs are taken; refusals: commands/test_refusals.py."""

import gzip
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.pair_files import COLUMNS, FILE, read_pairs
from bert_horovod.errors import ReportedError, UserError
from tests.horovod_runs import PROJECT
from tests.rights import without_rights

BLIMP = PROJECT.parent / "shared" / "data" / "pairs" / "blimp"


def jsonl(pairs: list[tuple[str, str]], **more: object) -> str:
    return "".join(f"{json.dumps(dict(zip(COLUMNS, pair, strict=True)) | more)}\n" for pair in pairs)


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    text = jsonl([("it's a", "a it's"), ("b", "c")], field="syntax", linguistics_term="islands", more=None)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    (tmp_path / "in" / "b.csv").write_text('sentence_bad,sentence_good\n"d, e",f\n')
    (tmp_path / "in" / "g.tsv").write_text("sentence_good\tsentence_bad\ng\th\n")
    (tmp_path / "in" / "README.md").write_text("# Pairs\n")
    return tmp_path


def test_json_lines_csv_and_tsv_plain_or_compressed_and_directories_are_read(files):
    pairs = read_pairs([files / "a.jsonl.gz", files / "in", files / "in" / "b.csv"])
    assert pairs.sentences == [("it's a", "a it's"), ("b", "c"), ("f", "d, e"), ("g", "h")]
    assert pairs.places[1] == (files / "a.jsonl.gz", 2)
    assert pairs.groups == {
        FILE: ["a", "a", "b", "g"],
        "field": ["syntax", "syntax", "", ""],
        "linguistics_term": ["islands", "islands", "", ""],
    }


def test_a_folder_that_cannot_be_read_is_told(files):
    with without_rights(files / "in"), pytest.raises(ReportedError, match=r"cannot read .*in: Permission denied"):
        read_pairs([files])


def test_other_columns_may_be_named(files):
    pairs = read_pairs([files / "in" / "b.csv"], ("sentence_bad", "sentence_good"))
    assert pairs.sentences == [("d, e", "f")]


def test_a_message_names_no_flag_that_pretrain_lacks(files):
    (files / "a.csv").write_text("good,bad\na,b\n")
    for flag, names_columns in (("--pairs", True), ("--probe_dir", False)):
        with pytest.raises(UserError, match="has no column 'sentence_good'") as raised:
            read_pairs([files / "a.csv"], flag=flag)
        assert ("--text_columns" in str(raised.value)) == names_columns


def test_files_of_one_name_are_two_groups(files):
    (files / "a.csv").write_text("sentence_good,sentence_bad\ni,j\n")
    groups = read_pairs([files / "a.jsonl.gz", files / "a.csv"]).groups[FILE]
    assert groups == [str(files / "a.jsonl.gz")] * 2 + [str(files / "a.csv")]


def test_a_part_has_the_first_pair_of_each_file_and_is_spread(tmp_path):
    for name, count in (("long", 10), ("short", 3)):
        (tmp_path / f"{name}.jsonl").write_text(jsonl([(f"{name}{number}", "x") for number in range(count)]))
    pairs = read_pairs([tmp_path])
    assert [good for good, _ in pairs.every(4).sentences] == ["long0", "long4", "long8", "short0"]
    assert pairs.at_most(13) == pairs
    assert [good for good, _ in pairs.at_most(5).sentences] == ["long0", "long2", "long5", "long7", "short0"]
    assert pairs.every(4).hash != pairs.hash


def test_a_few_pairs_of_equal_sentences_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(jsonl([("a", "b")] * 99 + [("a", "a")]))
    assert read_pairs([tmp_path]).equal() == [f"{tmp_path / 'a.jsonl'}, line 100"]


@pytest.mark.skipif(not BLIMP.is_dir(), reason="BLiMP is not there")
def test_blimp_is_read_whole():
    pairs = read_pairs([BLIMP])
    assert len(pairs.sentences) == 67_000
    assert [len(set(names)) for names in pairs.groups.values()] == [67, 13, 5]
    assert len(pairs.equal()) == 7
