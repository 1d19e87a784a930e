"""The files of an entity recognition are found and checked; odd tags are named with file and line."""

import gzip
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.tagged_files import TagColumns
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.tag_data import NER, ner_data

TEXT = "good B-X\nfilm I-X\n\nbad O\n"


@pytest.fixture
def train(tmp_path) -> Path:
    (tmp_path / "train.txt").write_text(TEXT)
    return tmp_path / "train.txt"


def test_a_directory_has_files_by_their_usual_names(train):
    with gzip.open(train.with_name("devel.conll.gz"), "wt") as file:
        file.write(TEXT)
    train.with_name("test.tsv").write_text("fine\nplot\n")
    train.with_name("train.md").write_text("about")
    data = ner_data(Files(train.parent))
    assert (data.name, data.scheme, data.labels) == (NER, "IOB2", ("O", "B-X", "I-X"))
    assert data.test["test"].words == [["fine", "plot"]]
    assert data.numbers(data.train) == [[1, 2], [0]]
    assert data.numbers(data.test["test"]) == [[]]
    assert data.notices() == ["tags: IOB2, 1 type: X"]


def test_odd_tags_and_those_that_train_lacks_are_told_with_file_and_line(train):
    dev = train.with_name("dev.txt")
    dev.write_text("a O\nfine I-X\n\nplot B-Y\n")
    notices = ner_data(Files(train.parent)).notices()
    assert len(notices) == 3
    assert f"{dev}: 1 tag that IOB2 does not allow, the first in line 2: I-X of 'fine' after O" in notices[1]
    assert f"{dev} has tags that the train file lacks, and no prediction will be: B-Y" in notices[2]


def test_names_of_tags_give_their_order(train):
    files = Files(None, train, (train,))
    assert ner_data(files, TagColumns(names=("O", "I-X", "B-X"))).labels == ("O", "I-X", "B-X")
    with pytest.raises(UserError, match="has the tag I-X, which --tag_names does not name"):
        ner_data(files, TagColumns(names=("O", "B-X")))
    with pytest.raises(UserError, match="--tag_names names O twice"):
        ner_data(files, TagColumns(names=("O", "O")))
    with pytest.raises(UserError, match="--tag_names 'PER': expected O, or B-, I-, E- or S- before a type"):
        ner_data(files, TagColumns(names=("O", "PER")))
    with pytest.raises(UserError, match="--tag_names B-X,I-X lacks O, the tag of words outside entities"):
        ner_data(files, TagColumns(names=("B-X", "I-X")))


def test_mistakes_in_files_are_told(train, tmp_path):
    with pytest.raises(UserError, match="expected --data_dir, or --train_file and --dev_file"):
        ner_data(Files(None, train))
    with pytest.raises(UserError, match=r"has no file called dev or devel or .*, as in dev\.tsv"):
        ner_data(Files(tmp_path))
    with pytest.raises(UserError, match="takes one --dev_file and at most one --test_file"):
        ner_data(Files(None, train, (train, train)))
    (tmp_path / "none.conll").write_text("a O\nb O\n")
    with pytest.raises(UserError, match=r"none\.conll: every tag is O; expected at least one entity"):
        ner_data(Files(None, tmp_path / "none.conll", (train,)))
