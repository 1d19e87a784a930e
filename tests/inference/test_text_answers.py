"""What a head's outputs say: one function for evaluation, submissions and predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.reading.table_files import table_text
from bert_horovod.inference.text_predictor import answers, joined, probabilities


def test_the_likeliest_label_is_the_first_of_equal_ones():
    assert answers(np.array([[1, 3, 2], [5, 5, 0]], np.float32), 3).tolist() == [1, 0]


def test_a_real_number_is_the_shortest_decimal_that_means_it():
    assert answers(np.array([[4.87], [0.1]], np.float32), 0).tolist() == [4.87, 0.1]


def test_probabilities_are_the_softmax_and_large_logits_do_not_overflow():
    computed = probabilities(np.array([[0, np.log(3)], [1000, 0]], np.float32))
    assert computed.dtype == np.float64
    assert computed[0].tolist() == pytest.approx([0.25, 0.75])
    assert computed[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("names", "separator"), [(["a", "b"], "\t"), (["a", "b"], "\n"), (["a\tb"], ","), (["a,b"], ","), ([" a"], ",")]
)
def test_labels_that_a_field_of_tsv_would_change_are_a_json_list(names, separator):
    written = table_text(Path("a.tsv"), ["prediction"], [[joined(names, separator)]]).splitlines()[1]
    assert json.loads(written) == names


def test_labels_that_a_field_holds_are_plain():
    assert joined(["a b", "c"], ",") == "a b,c"
