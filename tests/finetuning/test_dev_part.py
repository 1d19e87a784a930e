"""A train file is divided by label into a train part and a dev part, always in the same way."""

from collections import Counter

import pytest

from bert_horovod.batches.examples.labelled import LabelledTexts, LabelSets
from bert_horovod.errors import UserError
from bert_horovod.finetuning.text_data import divided


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


@pytest.mark.parametrize("fraction", [0, -0.1, 0.51, 1, float("nan")])
def test_a_fraction_that_leaves_no_train_part_is_refused(fraction):
    with pytest.raises(UserError, match=r"--dev_fraction .*: expected more than 0 and at most 0.5"):
        divided(examples([0, 1]), fraction)


def test_too_few_examples_are_refused():
    with pytest.raises(UserError, match=r"--dev_fraction 0\.1 of 4 examples leaves no dev example"):
        divided(examples([0, 1, 0, 1]), 0.1)
