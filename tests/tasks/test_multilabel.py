"""Any number of labels a text: logits and loss are those of transformers' problem_type for it."""

import numpy as np
import pytest
import tensorflow as tf
import torch

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.tasks.classification import Classification
from bert_horovod.tasks.multilabel import Multilabel
from tests.tasks.test_classification import batch, forward
from tests.toy_glue import write_checkpoint

LABELS = ("joy", "love", "anger", "fear", "neutral")
TARGETS = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]], np.float32)  # the last: none


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "multilabel", Multilabel(LABELS, threshold=0.25))


def test_class_weights_are_the_pos_weight_of_torch(directory):
    weights = (3.0, 0.5, 1.0, 7.0, 2.0)
    task = Multilabel(LABELS, class_weights=weights)
    rows = {name: array for name, array in batch().items() if name != "labels"} | {"targets": TARGETS[:, None]}
    tensors = {name: tf.constant(array) for name, array in rows.items()}
    parameters = forward(read_directory(directory, task).parameters)
    logits = torch.tensor(task.outputs(parameters, tensors)["logits"].numpy()[:3, 0])
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))(logits, torch.tensor(TARGETS[:3]))
    loss = task.loss(task.sums(parameters, tensors), task.batch_counts(rows))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_head_of_one_label_a_text_is_not_taken_over(tmp_path, directory):
    several, one = Multilabel(LABELS), Classification(LABELS)
    other = write_checkpoint(tmp_path / "one", one)
    assert "classifier.weight" in read_directory(directory, several).parameters
    assert "classifier.weight" not in read_directory(directory, one).parameters
    assert "classifier.weight" not in read_directory(other, several).parameters
    assert read_directory(directory, Multilabel(LABELS[::-1])).parameters["classifier.bias"].tolist() == (
        read_directory(directory, several).parameters["classifier.bias"][::-1].tolist()
    )
