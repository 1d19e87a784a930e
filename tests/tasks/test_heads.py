"""Heads of labels of texts and of words: names, dropout, products, class weights.

finetuning/kinds/test_kinds.py compares their outputs and losses with transformers.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.huggingface import describe_directory, read_directory
from bert_horovod.tasks.text_head import Classification, Multilabel
from bert_horovod.tasks.token_classification import TokenClassification
from tests.model.forwards import dropout_of, forward_of, tensors
from tests.toy_glue import MODEL, write_checkpoint

TEXTS = Classification(("negative", "neutral", "positive"))
WORDS = TokenClassification(("O", "B-X", "I-X"))
LABELS = ("joy", "love", "anger", "fear", "neutral")
SEVERAL = Multilabel(LABELS, threshold=0.25)
TARGETS = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]], np.float32)  # the last: none
LENGTHS = np.array([12, 7, 2, 0])  # of rows; the last has no example


def batch(of_words: bool = False) -> dict[str, np.ndarray]:
    """Rows of a text each, or of a sentence whose words are labelled."""
    random = np.random.default_rng(0)
    present = np.arange(12) < LENGTHS[:, None]
    arrays = {
        "input_ids": np.where(present, random.integers(5, MODEL.vocab_size, present.shape), 0).astype(np.int32),
        "token_type_ids": (present & (np.arange(12) > 4)).astype(np.int32),
        "position_ids": np.where(present, np.arange(12), 0).astype(np.int32),
        "sequence_ids": present.astype(np.int32),
    }
    if of_words:
        counted = present & (random.random(present.shape) < 0.5)
        labels = np.where(counted, random.integers(0, 3, present.shape), 0)
        return arrays | {"labels": labels.astype(np.int32), "weights": counted.astype(np.float32)}
    labels = np.array([0, 2, 1, 0], np.int32)[:, None]
    weights = (LENGTHS > 0).astype(np.float32)[:, None]
    return arrays | {"cls_positions": np.zeros((4, 1), np.int32), "labels": labels, "weights": weights}


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict:
    """Checkpoints by the kind of their task."""
    directory = tmp_path_factory.mktemp("heads")
    return {type(task): write_checkpoint(directory / type(task).__name__, task) for task in (TEXTS, WORDS, SEVERAL)}


@pytest.mark.parametrize(
    ("task", "problem_type"), [(TEXTS, "single_label_classification"), (WORDS, None)], ids=["texts", "words"]
)
def test_label_names_are_those_of_transformers_and_accuracy_is_that_of_the_logits(
    directories, transformers, task, problem_type
):
    config = transformers.AutoConfig.from_pretrained(directories[type(task)])
    assert config.id2label == dict(enumerate(task.labels))
    assert config.label2id == {label: number for number, label in enumerate(task.labels)}
    assert config.problem_type == problem_type
    rows, forward = batch(task is WORDS), forward_of(MODEL, read_directory(directories[type(task)], task).parameters)
    logits = task.outputs(forward, tensors(rows))["logits"]
    assert (logits.dtype, logits.shape) == (tf.float32, (*rows["labels"].shape, 3))
    sums, counts = task.sums(forward, tensors(rows)), task.batch_counts(rows)
    counted = rows["weights"] > 0
    assert list(counts.values()) == [counted.sum()]
    metrics = task.metrics({name: float(value) for name, value in sums.items()}, counts)
    correct = (logits.numpy().argmax(-1) == rows["labels"])[counted].mean()
    assert metrics["accuracy" if task is TEXTS else "tag_accuracy"] == pytest.approx(correct, rel=1e-6)


@pytest.mark.parametrize("task", [TEXTS, WORDS], ids=["texts", "words"])
def test_the_output_is_dropped_alike_however_rows_are_split(directories, task):
    parameters = read_directory(directories[type(task)], task).parameters

    def logits(rows: slice, key: int | None = 5) -> np.ndarray:
        dropout = dropout_of(key, rows.start) if key else None
        arrays = {name: value[rows] for name, value in batch(task is WORDS).items()}
        return task.outputs(forward_of(MODEL, parameters, dropout), tensors(arrays))["logits"].numpy()

    whole = logits(slice(0, 4))
    np.testing.assert_allclose(np.concatenate([logits(slice(0, 2)), logits(slice(2, 4))]), whole, rtol=1e-5, atol=1e-6)
    for key in (6, None):
        assert np.abs(logits(slice(0, 4), key) - whole).max() > 1e-3


@pytest.mark.parametrize(
    ("task", "slots", "last_layer", "heads"),
    [
        (TEXTS, {"examples": 1}, 2, {"head: pooler": (2, MODEL.hidden_size), "head: classifier": (2, 3)}),
        (WORDS, {"sentences": 1}, None, {"head: classifier": (24, 3)}),
    ],
    ids=["texts", "words"],
)
def test_products_are_those_of_the_encoder_at_the_positions_that_the_head_reads(task, slots, last_layer, heads):
    products = {product.name: product for product in task.products(MODEL, rows=2, length=12, slots=slots)}
    assert {name: (product.m, product.n) for name, product in products.items() if name.startswith("head")} == heads
    last = {product.m for name, product in products.items() if name == "last layer: output"}
    assert last == ({last_layer} if last_layer else set())


def test_class_weights_are_factors_of_the_loss_alone(directories):
    weights = np.array([0.5, 2.0, 4.0])
    task, rows = Classification(TEXTS.labels, class_weights=tuple(weights)), batch()
    forward = forward_of(MODEL, read_directory(directories[Classification], TEXTS).parameters)
    logits = task.outputs(forward, tensors(rows))["logits"][:3, 0].numpy().astype(np.float64)
    labels = rows["labels"][:3, 0]
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(3), labels]
    sums = task.sums(forward, tensors(rows))
    assert math.isclose(float(sums["label_loss"]), float(np.sum(losses * weights[labels])), rel_tol=1e-5)
    assert float(sums["label_correct"]) == float(TEXTS.sums(forward, tensors(rows))["label_correct"])


def test_class_weights_are_the_pos_weight_of_torch(directories, torch):
    weights = (3.0, 0.5, 1.0, 7.0, 2.0)
    task = Multilabel(LABELS, class_weights=weights)
    rows = {name: array for name, array in batch().items() if name != "labels"} | {"targets": TARGETS[:, None]}
    forward = forward_of(MODEL, read_directory(directories[Multilabel], task).parameters)
    logits = torch.tensor(task.outputs(forward, tensors(rows))["logits"].numpy()[:3, 0])
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))(logits, torch.tensor(TARGETS[:3]))
    loss = task.loss(task.sums(forward, tensors(rows)), task.batch_counts(rows))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_head_is_taken_over_by_its_kind_alone_and_put_into_the_order_of_the_labels(directories):
    one = Classification(LABELS)
    assert "classifier.weight" in read_directory(directories[Multilabel], SEVERAL).parameters
    assert "classifier.weight" not in read_directory(directories[Multilabel], one).parameters
    assert "classifier.weight" not in read_directory(directories[Classification], Multilabel(TEXTS.labels)).parameters
    ours, turned = (
        read_directory(directories[Multilabel], Multilabel(labels)).parameters["classifier.bias"].tolist()
        for labels in (LABELS, LABELS[::-1])
    )
    assert turned == ours[::-1]
    _, _, architectures = describe_directory(directories[TokenClassification])
    assert [architecture.name for architecture in architectures] == ["BertForTokenClassification", "BertModel"]
    assert architectures[0].labels == WORDS.labels
    assert architectures[0].configuration(MODEL) == WORDS.configuration(MODEL)
