"""A classifier's head is matched with a task's labels by their names."""

import numpy as np
import pytest

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.interchange.suitability import head_rows
from bert_horovod.tasks.text_head import Classification, Regression
from tests.toy_glue import MODEL, write_checkpoint

OURS = Classification(("contradiction", "entailment", "neutral"))
HUB = Classification(("entailment", "neutral", "contradiction"))  # the order of most models on the hub
WEIGHT, BIAS = "classifier.weight", "classifier.bias"


@pytest.mark.parametrize(
    ("theirs", "ours", "rows"),
    [
        (OURS, OURS, [0, 1, 2]),
        (HUB, OURS, [2, 0, 1]),
        (Classification(("a", "b", "c")), OURS, None),
        (Classification(("contradiction", "entailment")), OURS, None),
        (Regression(), OURS, None),
        (OURS, Regression(), None),
        (Regression("grade"), Regression("score"), [0]),
    ],
)
def test_rows_go_by_name(theirs, ours, rows):
    assert head_rows(theirs.configuration(MODEL), ours.configuration(MODEL)) == rows


def test_labels_without_names_or_order_serve_no_classifier():
    config = HUB.configuration(MODEL)
    for changed in ({"id2label": None}, {"id2label": {"0": "a", "2": "b", "3": "c"}}, {"architectures": None}):
        assert head_rows(config | changed, OURS.configuration(MODEL)) is None


def test_names_that_transformers_does_not_write_are_those_that_it_gives():
    ours = Classification(("LABEL_1", "LABEL_0")).configuration(MODEL)
    assert head_rows({"architectures": ["BertForSequenceClassification"]}, ours) == [1, 0]
    assert head_rows({"architectures": ["BertForSequenceClassification"], "num_labels": 3}, ours) is None


def test_a_checkpoint_of_another_order_is_read_in_ours(tmp_path):
    path = write_checkpoint(tmp_path / "hub", HUB)
    theirs, ours = (read_directory(path, task).parameters for task in (HUB, OURS))
    for name in (WEIGHT, BIAS):
        np.testing.assert_array_equal(ours[name], theirs[name][[2, 0, 1]])
    assert np.ptp(theirs[WEIGHT], axis=0).max() > 0.1


def test_a_head_of_other_labels_is_left_out(tmp_path):
    path = write_checkpoint(tmp_path / "hub", HUB)
    for task in (Classification(("a", "b", "c")), Classification(("yes", "no")), Regression()):
        assert not {WEIGHT, BIAS} & read_directory(path, task).parameters.keys()
