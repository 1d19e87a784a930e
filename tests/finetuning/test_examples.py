"""Labelled files are read as their task's format says, and one that is not so is refused by what is wrong."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import (
    LabelFormat,
    glue_format,
    label_names,
    learn_labels,
    read_labelled,
    read_unlabelled,
    refuse_one_label,
)
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.inference.text_predictor import joined_labels

OWN = LabelFormat(("text",), "label", None)
REAL = LabelFormat(("text",), "label", {})
SEVERAL = LabelFormat(("text",), "label", None, own=True, separator=";")


def written(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_go_by_name_and_pairs_have_two_texts(tmp_path):
    text = "label\tindex\tsentence2\tsentence1\nnot_entailment\t0\tB\tA\nentailment\t1\tD\tC\n"
    split = read_labelled(written(tmp_path / "train.tsv", text), glue_format(TASKS["rte"]))
    assert split.examples == ((["A", "C"], ["B", "D"]), [1, 0])


def test_labels_are_words_or_numbers_and_their_order_is_the_tables(tmp_path):
    text = "sentence1\tsentence2\tgold_label\n" + "".join(
        f"A\tB\t{label}\n" for label in ("neutral", "contradiction", "entailment")
    )
    assert read_labelled(written(tmp_path / "a.tsv", text), glue_format(TASKS["mnli"])).examples.labels == [2, 0, 1]
    text = "sentence1\tsentence2\tlabel\nA\tB\t1\nA\tB\t0\n"
    assert read_labelled(written(tmp_path / "b.tsv", text), glue_format(TASKS["wnli"])).examples.labels == [1, 0]


def test_labels_are_learned_sorted_numbers_by_their_value(tmp_path):
    path = written(tmp_path / "a.csv", "text,label\na,10\nb,9\nc,-1\nd,9\n")
    form = learn_labels(path, OWN)
    assert list(form.labels) == ["-1", "9", "10"]
    assert read_labelled(path, form).examples.labels == [2, 1, 0, 1]
    words = learn_labels(written(tmp_path / "b.csv", "text,label\na,yes\nb,no\nc,3\n"), OWN)
    assert list(words.labels) == ["3", "no", "yes"]
    odd = learn_labels(written(tmp_path / "c.csv", "text,label\na,nan\nb,2\nc,inf\nd,1\n"), OWN)
    assert list(odd.labels) == ["1", "2", "inf", "nan"]  # no number orders nan


def test_a_label_that_train_has_not_is_named_with_its_line(tmp_path):
    form = learn_labels(written(tmp_path / "train.csv", "text,label\na,yes\nb,no\n"), OWN)
    dev = written(tmp_path / "dev.csv", "text,label\na,yes\nb,maybe\n")
    with pytest.raises(UserError, match=r"dev\.csv, line 3: the label is 'maybe', expected one of no, yes"):
        read_labelled(dev, form)


def test_real_numbers_are_read_and_what_is_none_is_refused(tmp_path):
    assert read_labelled(written(tmp_path / "a.csv", "text,label\na,2.5\nb,-1\n"), REAL).examples.labels == [2.5, -1.0]
    for value in ("high", "nan", "inf", "", "1e38"):
        path = written(tmp_path / "b.csv", f"text,label\na,2.5\nb,{value}\n")
        with pytest.raises(UserError, match=r"line 3: the label is .*, expected a number"):
            read_labelled(path, REAL)


def test_a_column_of_thousands_of_different_values_is_no_label(tmp_path):
    rows = "".join(f"a,{number}\n" for number in range(10_001))
    with pytest.raises(UserError, match="10,001 different labels"):
        learn_labels(written(tmp_path / "a.csv", f"text,label\n{rows}"), OWN)


def test_a_test_file_is_refused_as_train_and_read_row_by_row_as_test(tmp_path):
    path = written(tmp_path / "test.tsv", "index\tsentence\n0\tgood\n1\t\n")
    for name in ("cola", "sst2"):
        with pytest.raises(UserError, match=r"no column 'label', .*a test file has no labels"):
            read_labelled(path, glue_format(TASKS[name]))
    split = read_unlabelled(path, glue_format(TASKS["sst2"]))
    assert split.examples.texts == (["good", ""],)
    assert split.empty == 1


@pytest.mark.parametrize("label", ["", "  "])
def test_an_empty_label_is_no_class(tmp_path, label):
    (tmp_path / "a.csv").write_text(f"text,label\ngood,1\nbad,0\nnone,{label}\n")
    with pytest.raises(UserError, match="line 4: the label, in the column 'label', is empty; expected one in each row"):
        learn_labels(tmp_path / "a.csv", LabelFormat(("text",), "label", None))


def test_several_labels_stand_in_one_column_or_a_json_list(tmp_path):
    path = written(tmp_path / "a.csv", 'text,label\na,joy; love\nb,\nc,"[""love"", ""2""]"\nd,joy;joy\n')
    form = learn_labels(path, SEVERAL)
    assert list(form.labels) == ["2", "joy", "love"]
    labels = read_labelled(path, form).examples.labels
    assert labels == [[1, 2], [], [0, 2], [1]]
    assert labels.multi_hot().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
    lines = '{"text": "a", "label": ["love", 2]}\n{"text": "b", "label": []}\n'
    path = written(tmp_path / "b.jsonl", lines)
    assert read_labelled(path, form).examples.labels == [[0, 2], []]
    assert read_unlabelled(path, form).examples.texts == (["a", "b"],)


def test_labels_that_cannot_be_read_are_refused_by_their_line(tmp_path):
    form = learn_labels(written(tmp_path / "train.csv", "text,label\na,joy;love\n"), SEVERAL)
    with pytest.raises(UserError, match=r"b\.csv, line 3: the label is 'lov', expected one of joy, love"):
        read_labelled(written(tmp_path / "b.csv", "text,label\na,joy\nb,joy;lov\n"), form)
    with pytest.raises(UserError, match=r"line 2: the labels are .*which is no JSON list .*or names with ';' between"):
        read_labelled(written(tmp_path / "c.csv", "text,label\na,\"['joy']\"\n"), form)
    with pytest.raises(UserError, match="no row has a label in the column 'label'"):
        learn_labels(written(tmp_path / "d.csv", "text,label\na,\nb, ; \n"), SEVERAL)
    with pytest.raises(UserError, match=r"e\.jsonl, line 1: 'text' is \['a'\]; expected text or a number"):
        read_labelled(written(tmp_path / "e.jsonl", '{"text": ["a"], "label": ["joy"]}\n'), form)
    with pytest.raises(UserError, match="all 2 examples have the label 'joy, love'"):
        refuse_one_label(read_labelled(written(tmp_path / "f.csv", "text,label\na,joy;love\nb,love;joy\n"), form), form)


ONE_HOT = LabelFormat(("text",), "label", None, own=True, separator=",", label_columns=("joy", "fear"))


def test_labels_may_have_a_column_each(tmp_path):
    path = written(tmp_path / "a.csv", "fear,text,joy\n0,a,1\n1.0,b,True\nFALSE,c,0\n")
    form = learn_labels(path, ONE_HOT)
    assert list(form.labels) == ["joy", "fear"]
    assert read_labelled(path, form).examples.labels == [[0], [0, 1], []]
    path = written(tmp_path / "a.jsonl", '{"text": "a", "joy": true, "fear": 0}\n')
    assert read_labelled(path, form).examples.labels == [[0]]
    for value in ("2", "", "-1", "joy"):
        path = written(tmp_path / "b.csv", f"fear,text,joy\n0,a,{value}\n")
        with pytest.raises(
            UserError, match=rf"line 2: '{value}' in the column 'joy' of --label_columns; expected 0 or"
        ):
            read_labelled(path, form)
    with pytest.raises(UserError, match=r"no column 'fear', .*--label_columns names other columns"):
        learn_labels(written(tmp_path / "c.csv", "text,joy\na,1\n"), ONE_HOT)


@pytest.mark.parametrize(
    ("rows", "form", "match"),
    [
        (
            ['"[1, 0, 1]"', '"[0, 0, 0]"'],
            SEVERAL,
            r"'\[1, 0, 1\]', and each in the column 'label' is 3 times 0 or 1; .*",
        ),
        (["1;0", "0;0"], SEVERAL, "is 2 times 0 or 1; expected the labels' names, .*: --label_columns joy,fear,love"),
        (['"[1.0, true]"', '"[0.0, false]"'], SEVERAL, "is 2 times 0 or 1"),
        (["\"('joy', 'love')\"", "joy"], SEVERAL, r"line 2: the labels are .*, a tuple or a set as Python prints it"),
        (
            ["joy", "{'joy'}"],
            SEVERAL,
            r"line 3: the labels are .*, a tuple or a set as Python prints it; expected a JSON",
        ),
        (["joy", "set()"], SEVERAL, "a tuple or a set as Python prints it"),
        (["joy", "frozenset({'joy'})"], SEVERAL, "a tuple or a set as Python prints it"),
        (["joy", "(joy; love)"], SEVERAL, "a tuple or a set as Python prints it"),
        (["joy", '"[[""joy""]]"'], SEVERAL, r"line 3: \['joy'\] is no label in"),
        (
            ["['joy']", "['fear']"],
            OWN,
            "the label is \"\\['joy'\\]\", a list, .*; --task multilabel takes several, as a JSON list",
        ),
        (["[0]", "[1]"], OWN, "--task multilabel takes several"),
        (["[]", '"[1, 0]"', "", '"[0, 1]"'], SEVERAL, "line 3: .* is 2 times 0 or 1"),
        (["1 0 1", "0 1 0"], SEVERAL, "is 3 times 0 or 1"),
        (["joy", " joy"], OWN, "the labels 'joy' and ' joy' in the column 'label' differ by blanks alone"),
    ],
)
def test_lists_and_vectors_of_other_programs_are_no_labels(tmp_path, rows, form, match):
    with pytest.raises(UserError, match=match):
        learn_labels(written(tmp_path / "a.csv", "text,label\n" + "".join(f"a,{row}\n" for row in rows)), form)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (["[0]", "[27]"], ["0", "27"]),
        (['"[0, 1]"', "[1]"], ["0", "1"]),
        (["0;1", "1;0;2"], ["0", "1", "2"]),
        (["(other)", "(other);(none)", "a (b)"], ["(none)", "(other)", "a (b)"]),
        (['"[null, ""joy""]"', "fear"], ["fear", "joy"]),
    ],
)
def test_numbers_and_names_with_brackets_are_labels(tmp_path, rows, labels):
    path = written(tmp_path / "a.csv", "text,label\n" + "".join(f"a,{row}\n" for row in rows))
    assert list(learn_labels(path, SEVERAL).labels) == labels


def test_jsons_null_is_no_label_and_none_is_one(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "a", "label": null}\n{"text": "b", "label": ["None", null]}\n')
    form = learn_labels(path, SEVERAL)
    assert list(form.labels) == ["None"]
    assert read_labelled(path, form).examples.labels == [[], [0]]


def test_labels_are_quoted_where_one_has_a_comma(tmp_path):
    form = learn_labels(written(tmp_path / "train.csv", 'text,label\na,"no, never"\nb,yes\n'), OWN)
    with pytest.raises(UserError, match=r"expected one of 'no, never', 'yes'$"):
        read_labelled(written(tmp_path / "dev.csv", "text,label\na,no\n"), form)


def test_a_name_with_the_separator_in_it_is_written_as_a_list_and_read_back():
    for names in (["joy", "love"], ["a, b", "c"], ["[x", "y"], []):
        assert label_names(joined_labels(names, ","), ",", None, 1) == names
