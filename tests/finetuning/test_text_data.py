"""The files of a task are found, read and checked together; GLUE's real files have as many rows as GLUE says.

A train file is divided by label into a train part and a dev part, always in the same way.
"""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.labelled import LabelledTexts, LabelSets
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.text_data import OwnOptions, divided, glue_data, own_data
from bert_horovod.tasks.text_head import Classification, Regression
from tests.toys import toy_recipe

# Rows of train, of the dev files and of the test files; those of QNLI's train and of MNLI and QQP are samples.
REAL = {
    "cola": (8551, [1043], {"CoLA": 1063}),
    "sst2": (67349, [872], {"SST-2": 1821}),
    "mrpc": (3668, [408], {"MRPC": 1725}),
    "stsb": (5749, [1500], {"STS-B": 1379}),
    "qqp": (8999, [1000], {}),
    "mnli": (8999, [1000, 1000], {}),
    "qnli": (8999, [5463], {"QNLI": 5463}),
    "rte": (2490, [277], {"RTE": 3000}),
    "wnli": (635, [71], {"WNLI": 146}),
}
TITLES = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "qqp": "QQP", "mnli": "MNLI"}
TITLES |= {"qnli": "QNLI", "rte": "RTE", "wnli": "WNLI"}


def real_files(shared_data, name: str) -> Files:
    directory = shared_data / "finetune" / "glue" / TITLES[name]
    train = directory / "train-sample.tsv.gz"
    dev = [directory / f"{split}-sample.tsv.gz" for split in ("dev", "dev_matched", "dev_mismatched")]
    if name in ("qqp", "mnli"):  # without test files
        return Files(None, train, tuple(path for path in dev if path.is_file()))
    return Files(directory, train if train.is_file() else None)


@pytest.mark.parametrize("name", REAL)
def test_the_real_files_have_as_many_rows_as_glue_says(shared_data, name):
    data = glue_data(name, real_files(shared_data, name))
    assert len(data.train.examples.labels) == REAL[name][0]
    assert [len(split.examples.labels) for split in data.dev.values()] == REAL[name][1]
    assert {title: len(split.examples.texts[0]) for title, split in data.test.items()} == REAL[name][2]
    assert data.notices() == []


def test_mnli_is_read_with_its_official_columns_and_both_dev_sets(shared_data):
    official = shared_data / "finetune" / "glue" / "MNLI" / "official-columns"
    files = Files(None, official / "train.tsv.gz", (official / "dev_matched.tsv.gz",) * 2)
    data = glue_data("mnli", files)
    assert data.train.examples.texts[0][0] == "Price caps may sound more attractive with every passing rate case."
    assert Texts(data).task(toy_recipe()) == Classification(
        ("contradiction", "entailment", "neutral"), ("sentence1", "sentence2")
    )
    assert list(data.dev) == ["", "_mismatched"]


def toy(tmp_path, **files: str) -> Files:
    paths = {}
    for name, text in files.items():
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text(text, encoding="utf-8")
    return Files(None, paths["train"], *((paths[name],) if name in paths else () for name in ("dev", "test")))


def test_own_files_have_named_columns_and_their_labels_are_learned(tmp_path):
    files = toy(tmp_path, train="a,b,c\nx,,no\nz,w,yes\n", dev="c,b,a\nyes,1,2\n", test="a,b\np,q\n")
    data = own_data("classification", files, ("a", "b"), "c")
    assert Texts(data).task(toy_recipe()) == Classification(("no", "yes"), ("a", "b"))
    assert data.dev[""].examples == ((["2"], ["1"]), [1])
    assert data.test["test"].examples.texts == (["p"], ["q"])
    assert data.metrics == ("accuracy", "macro_f1")
    (notice,) = data.notices()
    assert "1 examples have an empty text" in notice


def test_columns_of_labels_are_read_and_a_label_that_stands_for_none_is_told(tmp_path):
    files = toy(tmp_path, train="t,a,None,c\nx,1,0,0\ny,0,1,0\n", dev="None,a,c,t\n1,1,1,x\n")
    data = own_data("multilabel", files, ("t",), "label", OwnOptions(label_columns=("a", "None", "c")))
    assert (Texts(data).task(toy_recipe()).labels, data.dev[""].examples.labels) == (("a", "None", "c"), [[0, 1, 2]])
    none, never = data.notices()
    assert "1 example with the label 'None', which other programs write for none; it is learned as a label" in none
    assert "no example has the label 'c'" in never
    files = toy(tmp_path, train="t,label\nx,nan\ny,b\n", dev="t,label\nx,b\n")
    (notice,) = own_data("classification", files, ("t",), "label").notices()
    assert "1 example with the label 'nan'" in notice
    assert notice.endswith("if it is none, leave these rows out")


@pytest.mark.parametrize(
    ("names", "match"),
    [(("a",), "--label_columns a: expected two names or more"), (("a", "a"), "twice"), (("a", "t"), "--text_columns")],
)
def test_columns_of_labels_are_several_and_others_than_those_of_text(tmp_path, names, match):
    files = toy(tmp_path, train="t,a,b\nx,1,0\ny,0,1\n", dev="t,a,b\nx,1,1\n")
    with pytest.raises(UserError, match=match):
        own_data("multilabel", files, ("t",), "label", OwnOptions(label_columns=names))


def test_a_regression_learns_real_numbers(tmp_path):
    data = own_data("regression", toy(tmp_path, train="t,s\nx,1\nz,2.5\n", dev="t,s\nx,1\n"), ("t",), "s")
    assert Texts(data).task(toy_recipe()) == Regression("s", ("t",))
    assert data.metrics == ("pearson", "spearman")


def test_glues_files_that_are_not_there_are_asked_for(tmp_path):
    with pytest.raises(UserError, match="expected --data_dir, the directory SST-2 of GLUE's download, or --train_file"):
        glue_data("sst2", Files())
    with pytest.raises(UserError, match="--dev_file is given 2 times; SST-2 has dev"):
        glue_data("sst2", Files(None, tmp_path / "a.tsv", (tmp_path / "a.tsv",) * 2))
    train = write(tmp_path / "train.tsv", "sentence\tlabel\nx\t0\ny\t1\n")
    with pytest.raises(UserError, match="--test_file is given 2 times; SST-2 has SST-2"):
        glue_data("sst2", Files(None, train, (train,), (train,) * 2))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "place", ["MNLI/diagnostic.tsv", "AX/AX.tsv", "AX/diagnostic.tsv", "diagnostic/diagnostic.tsv"]
)
def test_the_diagnostic_set_of_glue_is_found_for_mnli(tmp_path, place):
    labelled = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tc\tentailment\n"
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path / "MNLI" / f"{split}.tsv", labelled)
    assert not glue_data("mnli", Files(tmp_path / "MNLI")).test
    diagnostic = write(tmp_path / place, 'index\tsentence1\tsentence2\n0\tThe "cat\tsat\n1\ta\tb\n')
    test_splits = glue_data("mnli", Files(tmp_path / "MNLI")).test
    assert {name: split.examples.texts for name, split in test_splits.items()} == {
        "AX": (['The "cat', "a"], ["sat", "b"])
    }
    named = glue_data("mnli", Files(tmp_path / "MNLI", test=(diagnostic,) * 3)).test
    assert list(named) == ["MNLI-m", "MNLI-mm", "AX"]


def test_broken_rows_are_told_of(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = tmp_path / "train.tsv"
    path.write_text(f"{header}0\t1\t2\tA\tB\t1\n5\t6\tbroken\n3\t4\t5\tC\tD\t0\n", encoding="utf-8")
    data = glue_data("qqp", Files(None, path, (path,)))
    assert [notice.partition(": ")[2] for notice in data.notices()] == [
        "1 broken rows are skipped: they lack fields"
    ] * 2


def test_goemotions_is_read_whole_as_any_number_of_labels(shared_data, tmp_path):
    for split in ("train", "dev"):
        packed = (shared_data / "finetune" / "multilabel" / "goemotions" / f"{split}.tsv.gz").read_bytes()
        (tmp_path / f"{split}.tsv.gz").write_bytes(gzip.compress(b"text\tlabels\n" + gzip.decompress(packed), 1))
    files = Files(None, tmp_path / "train.tsv.gz", (tmp_path / "dev.tsv.gz",))
    data = own_data("multilabel", files, ("text",), "labels")
    assert (len(data.train.examples.labels), len(data.dev[""].examples.labels)) == (43_410, 5_426)
    assert Texts(data).task(toy_recipe()).labels == tuple(map(str, range(28)))
    assert data.metrics[0] == "micro_f1"
    parts = own_data("multilabel", Files(None, files.train), ("text",), "labels", OwnOptions(dev_fraction=0.1))
    assert len(parts.dev[""].examples.labels) == 4_341
    shares = parts.dev[""].examples.label_array().mean(0) / data.train.examples.label_array().mean(0)
    assert np.abs(shares - 1).max() < 0.25, "each label has about its share in the dev part"


def examples(labels: list) -> LabelledTexts:
    return LabelledTexts(([f"text {number}" for number in range(len(labels))],), labels)


def test_each_label_has_its_share_and_no_example_is_lost():
    labels = [0] * 60 + [1] * 30 + [2] * 10
    train, dev = divided(examples(labels), 0.1)
    assert Counter(dev.labels) == {0: 6, 1: 3, 2: 1}
    assert sorted(train.texts[0] + dev.texts[0]) == sorted(examples(labels).texts[0])
    assert [int(text.split()[1]) for text in dev.texts[0]] == sorted(int(text.split()[1]) for text in dev.texts[0])
    for part in (train, dev):
        assert [labels[int(text.split()[1])] for text in part.texts[0]] == part.labels
    assert divided(examples(labels), 0.1) == (train, dev)
    assert dev.texts[0] != examples(labels).texts[0][:10]


def test_a_label_with_one_example_stays_in_the_train_part():
    train, dev = divided(examples([0] * 19 + [1]), 0.5)
    assert (Counter(train.labels), Counter(dev.labels)) == ({0: 9, 1: 1}, {0: 10})


def test_an_example_with_several_labels_counts_for_its_rarest():
    labels = LabelSets([[0, 1]] * 20 + [[0]] * 60 + [[]] * 20, 2)
    train, dev = divided(examples(labels), 0.2)
    assert Counter(map(tuple, dev.labels)) == {(0, 1): 4, (0,): 12, (): 4}
    assert isinstance(train.labels, LabelSets)
    assert train.labels.multi_hot().shape == (80, 2)


def test_real_numbers_are_divided_as_one_group():
    train, dev = divided(examples([number / 7 for number in range(50)]), 0.1)
    assert (len(train.labels), len(dev.labels)) == (45, 5)


def test_a_query_stays_whole_where_passages_are_ranked(tmp_path):
    queries = [f"query {number % 20}" for number in range(100)]
    rows = [f"{query},passage {number},{number % 5 == 0:d}" for number, query in enumerate(queries)]
    (tmp_path / "pairs.csv").write_text("query,passage,label\n" + "\n".join(rows))
    data = own_data(
        "reranking", Files(None, tmp_path / "pairs.csv"), ("query", "passage"), "label", OwnOptions(dev_fraction=0.1)
    )
    train, dev = (Counter(part.examples.texts[0]) for part in (data.train, data.dev[""]))
    assert (len(train), len(dev), {*train.values(), *dev.values()}) == (18, 2, {5})
    assert not train.keys() & dev.keys()


def test_too_few_examples_are_refused():
    with pytest.raises(UserError, match=r"--dev_fraction 0\.1 of 4 examples leaves no dev example"):
        divided(examples([0, 1, 0, 1]), 0.1)
