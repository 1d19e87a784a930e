"""A classifier computes what transformers' BertForSequenceClassification computes, and drops as the encoder does.

Any number of labels a text: logits and loss are those of transformers' problem_type for it.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
import torch
from transformers import AutoModelForSequenceClassification

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.weights import cast_weights
from bert_horovod.tasks.text_head import Classification, Multilabel
from tests.toy_glue import MODEL, write_checkpoint

TASK = Classification(("negative", "neutral", "positive"))
LENGTHS = np.array([12, 7, 2, 0])  # of rows; the last has no example


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    present = np.arange(12) < LENGTHS[:, None]
    return {
        "input_ids": np.where(present, random.integers(5, MODEL.vocab_size, present.shape), 0).astype(np.int32),
        "token_type_ids": (present & (np.arange(12) > 4)).astype(np.int32),
        "position_ids": np.where(present, np.arange(12), 0).astype(np.int32),
        "sequence_ids": present.astype(np.int32),
        "cls_positions": np.zeros((4, 1), np.int32),
        "labels": np.array([0, 2, 1, 0], np.int32)[:, None],
        "weights": (LENGTHS > 0).astype(np.float32)[:, None],
    }


def forward(parameters: dict[str, np.ndarray], dropout: DropoutState | None = None) -> Forward:
    policy = ComputePolicy()
    tensors = {name: tf.constant(value) for name, value in parameters.items()}
    return Forward(MODEL, cast_weights(tensors, policy.dtype), policy, dropout)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "classifier", TASK)


@pytest.fixture(scope="module")
def parameters(directory) -> dict[str, np.ndarray]:
    return read_directory(directory, TASK).parameters


def test_logits_and_label_names_are_those_of_transformers(directory, parameters):
    reference, loading = AutoModelForSequenceClassification.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert reference.config.id2label == {0: "negative", 1: "neutral", 2: "positive"}
    assert reference.config.label2id == {"negative": 0, "neutral": 1, "positive": 2}
    assert reference.config.problem_type == "single_label_classification"
    rows = batch()
    with torch.no_grad():
        expected = reference.eval()(
            input_ids=torch.tensor(rows["input_ids"], dtype=torch.long)[:3],
            token_type_ids=torch.tensor(rows["token_type_ids"], dtype=torch.long)[:3],
            attention_mask=torch.tensor(rows["sequence_ids"], dtype=torch.long)[:3],
            labels=torch.tensor(rows["labels"], dtype=torch.long)[:3, 0],
        )
    tensors = {name: tf.constant(value) for name, value in rows.items()}
    logits = TASK.outputs(forward(parameters), tensors)["logits"]
    assert (logits.dtype, logits.shape) == (tf.float32, (4, 1, 3))
    logits = logits[:, 0]
    np.testing.assert_allclose(logits.numpy()[:3], expected.logits.numpy(), rtol=1e-4, atol=1e-5)
    assert np.ptp(logits.numpy(), axis=0).max() > 0.1  # rows differ, so that equality says something

    sums = TASK.sums(forward(parameters), tensors)
    counts = TASK.batch_counts(rows)
    assert counts == {"examples": 3}
    assert math.isclose(float(TASK.loss(sums, counts)), float(expected.loss), rel_tol=1e-4)
    metrics = TASK.metrics({name: float(value) for name, value in sums.items()}, counts)
    correct = (expected.logits.argmax(-1).numpy() == rows["labels"][:3, 0]).mean()
    assert math.isclose(metrics["accuracy"], correct)


def test_the_pooled_output_is_dropped_alike_however_rows_are_split(parameters):
    def logits(first_row: int, rows: slice, key: int = 5) -> np.ndarray:
        dropout = DropoutState(tf.constant([key], tf.uint64), tf.constant(first_row, tf.uint64))
        tensors = {name: tf.constant(value[rows]) for name, value in batch().items()}
        return TASK.outputs(forward(parameters, dropout), tensors)["logits"].numpy()

    whole_logits = logits(0, slice(0, 4))
    np.testing.assert_allclose(
        np.concatenate([logits(0, slice(0, 2)), logits(2, slice(2, 4))]), whole_logits, rtol=1e-5
    )
    assert np.abs(logits(0, slice(0, 4), key=6) - whole_logits).max() > 1e-3
    tensors = {name: tf.constant(value) for name, value in batch().items()}
    plain = TASK.outputs(forward(parameters), tensors)["logits"].numpy()
    assert np.abs(plain - whole_logits).max() > 1e-3


def test_products_are_those_of_the_encoder_up_to_one_position_and_of_the_head():
    products = {product.name: product for product in TASK.products(MODEL, rows=2, length=12, slots={"examples": 1})}
    assert products["last layer: output"].m == 2
    assert (products["head: pooler"].m, products["head: pooler"].n) == (2, MODEL.hidden_size)
    assert (products["head: classifier"].m, products["head: classifier"].n) == (2, 3)
    assert [name for name in products if name.startswith("head")] == ["head: pooler", "head: classifier"]


def test_class_weights_are_factors_of_the_loss_alone(parameters):
    weights = np.array([0.5, 2.0, 4.0])
    task, rows = Classification(TASK.labels, class_weights=tuple(weights)), batch()
    tensors = {name: tf.constant(value) for name, value in rows.items()}
    logits = task.outputs(forward(parameters), tensors)["logits"][:3, 0].numpy().astype(np.float64)
    labels = rows["labels"][:3, 0]
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(3), labels]
    sums = task.sums(forward(parameters), tensors)
    assert math.isclose(float(sums["label_loss"]), float(np.sum(losses * weights[labels])), rel_tol=1e-5)
    assert float(sums["label_correct"]) == float(TASK.sums(forward(parameters), tensors)["label_correct"])


LABELS = ("joy", "love", "anger", "fear", "neutral")
TARGETS = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]], np.float32)  # the last: none


@pytest.fixture(scope="module")
def multilabel_directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "multilabel", Multilabel(LABELS, threshold=0.25))


def test_class_weights_are_the_pos_weight_of_torch(multilabel_directory):
    weights = (3.0, 0.5, 1.0, 7.0, 2.0)
    task = Multilabel(LABELS, class_weights=weights)
    rows = {name: array for name, array in batch().items() if name != "labels"} | {"targets": TARGETS[:, None]}
    tensors = {name: tf.constant(array) for name, array in rows.items()}
    parameters = forward(read_directory(multilabel_directory, task).parameters)
    logits = torch.tensor(task.outputs(parameters, tensors)["logits"].numpy()[:3, 0])
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))(logits, torch.tensor(TARGETS[:3]))
    loss = task.loss(task.sums(parameters, tensors), task.batch_counts(rows))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_head_of_one_label_a_text_is_not_taken_over(tmp_path, multilabel_directory):
    several, one = Multilabel(LABELS), Classification(LABELS)
    other = write_checkpoint(tmp_path / "one", one)
    assert "classifier.weight" in read_directory(multilabel_directory, several).parameters
    assert "classifier.weight" not in read_directory(multilabel_directory, one).parameters
    assert "classifier.weight" not in read_directory(other, several).parameters
    assert read_directory(multilabel_directory, Multilabel(LABELS[::-1])).parameters["classifier.bias"].tolist() == (
        read_directory(multilabel_directory, several).parameters["classifier.bias"][::-1].tolist()
    )
