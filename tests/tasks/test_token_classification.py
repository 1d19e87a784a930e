"""The head of tags computes what transformers' BertForTokenClassification computes."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.huggingface import describe_directory, read_directory
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.weights import cast_weights
from bert_horovod.tasks.token_classification import TokenClassification
from tests.toy_glue import MODEL, write_checkpoint

TASK = TokenClassification(("O", "B-X", "I-X"))
LENGTHS = np.array([12, 7, 2, 0])  # of rows; the last has no sentence


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    present = np.arange(12) < LENGTHS[:, None]
    counted = present & (random.random(present.shape) < 0.5)
    return {
        "input_ids": np.where(present, random.integers(5, MODEL.vocab_size, present.shape), 0).astype(np.int32),
        "token_type_ids": np.zeros(present.shape, np.int32),
        "position_ids": np.where(present, np.arange(12), 0).astype(np.int32),
        "sequence_ids": present.astype(np.int32),
        "labels": np.where(counted, random.integers(0, 3, present.shape), 0).astype(np.int32),
        "weights": counted.astype(np.float32),
    }


def forward(parameters: dict[str, np.ndarray], dropout: DropoutState | None = None) -> Forward:
    policy = ComputePolicy()
    tensors = {name: tf.constant(value) for name, value in parameters.items()}
    return Forward(MODEL, cast_weights(tensors, policy.dtype), policy, dropout)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tagger", TASK)


@pytest.fixture(scope="module")
def parameters(directory) -> dict[str, np.ndarray]:
    return read_directory(directory, TASK).parameters


@pytest.mark.full
def test_logits_loss_and_label_names_are_those_of_transformers(directory, parameters, torch, transformers):
    of_class = transformers.AutoModelForTokenClassification
    reference, loading = of_class.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert type(reference).__name__ == "BertForTokenClassification"
    assert reference.config.id2label == {0: "O", 1: "B-X", 2: "I-X"}
    rows = batch()
    with torch.no_grad():
        expected = reference.eval()(
            input_ids=torch.tensor(rows["input_ids"], dtype=torch.long)[:3],
            attention_mask=torch.tensor(rows["sequence_ids"], dtype=torch.long)[:3],
            labels=torch.tensor(np.where(rows["weights"] > 0, rows["labels"], -100), dtype=torch.long)[:3],
        )
    tensors = {name: tf.constant(value) for name, value in rows.items()}
    logits = TASK.outputs(forward(parameters), tensors)["logits"]
    assert (logits.dtype, logits.shape) == (tf.float32, (4, 12, 3))
    present = rows["sequence_ids"] > 0
    np.testing.assert_allclose(logits.numpy()[present], expected.logits.numpy()[present[:3]], rtol=1e-4, atol=1e-5)
    assert np.ptp(logits.numpy()[present], axis=0).max() > 0.1  # positions differ, so that equality says something

    sums = TASK.sums(forward(parameters), tensors)
    counts = TASK.batch_counts(rows)
    counted = rows["weights"] > 0
    assert counts == {"words": counted.sum()}
    assert math.isclose(float(TASK.loss(sums, counts)), float(expected.loss), rel_tol=1e-4)
    metrics = TASK.metrics({name: float(value) for name, value in sums.items()}, counts)
    correct = (expected.logits.argmax(-1).numpy() == rows["labels"][:3])[counted[:3]].mean()
    assert math.isclose(metrics["tag_accuracy"], correct, rel_tol=1e-6)


def test_the_output_is_dropped_alike_however_rows_are_split(parameters):
    def logits(first_row: int, rows: slice, key: int = 5) -> np.ndarray:
        dropout = DropoutState(tf.constant([key], tf.uint64), tf.constant(first_row, tf.uint64))
        tensors = {name: tf.constant(value[rows]) for name, value in batch().items()}
        return TASK.outputs(forward(parameters, dropout), tensors)["logits"].numpy()

    whole = logits(0, slice(0, 4))
    parts = np.concatenate([logits(0, slice(0, 2)), logits(2, slice(2, 4))])
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert np.abs(logits(0, slice(0, 4), key=6) - whole).max() > 1e-3


def test_products_are_those_of_the_encoder_at_every_position_and_of_the_head():
    products = {product.name: product for product in TASK.products(MODEL, rows=2, length=12, slots={"sentences": 1})}
    assert not [name for name in products if name.startswith("last layer")]
    assert (products["head: classifier"].m, products["head: classifier"].n) == (24, 3)
    assert [name for name in products if name.startswith("head")] == ["head: classifier"]


def test_a_directory_of_tags_is_told_from_one_of_a_texts_label(directory):
    _, _, architectures = describe_directory(directory)
    assert [architecture.name for architecture in architectures] == ["BertForTokenClassification", "BertModel"]
    assert architectures[0].labels == TASK.labels
    assert architectures[0].configuration(MODEL) == TASK.configuration(MODEL)
