"""A regression computes what transformers' BertForSequenceClassification computes of one output."""

import math

import numpy as np
import tensorflow as tf
import torch
from transformers import AutoModelForSequenceClassification

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.tasks.regression import Regression
from tests.tasks.test_classification import batch, forward
from tests.toy_glue import MODEL, write_checkpoint

TASK = Regression("grade", ("text",))


def test_outputs_and_loss_are_those_of_transformers(tmp_path):
    directory = write_checkpoint(tmp_path / "regression", TASK)
    reference, loading = AutoModelForSequenceClassification.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert (reference.config.problem_type, reference.config.id2label) == ("regression", {0: "grade"})
    rows = batch()
    rows["targets"] = np.array([[1.5], [-2.0], [0.25], [0.0]], np.float32)
    with torch.no_grad():
        expected = reference.eval()(
            input_ids=torch.tensor(rows["input_ids"], dtype=torch.long)[:3],
            token_type_ids=torch.tensor(rows["token_type_ids"], dtype=torch.long)[:3],
            attention_mask=torch.tensor(rows["sequence_ids"], dtype=torch.long)[:3],
            labels=torch.tensor(rows["targets"])[:3, 0],
        )
    tensors = {name: tf.constant(value) for name, value in rows.items()}
    parameters = read_directory(directory, TASK).parameters
    logits = TASK.outputs(forward(parameters), tensors)["logits"]
    assert (logits.dtype, logits.shape) == (tf.float32, (4, 1, 1))
    np.testing.assert_allclose(logits.numpy()[:3, 0], expected.logits.numpy(), rtol=1e-4, atol=1e-5)
    sums, counts = TASK.sums(forward(parameters), tensors), TASK.batch_counts(rows)
    assert counts == {"examples": 3}
    assert math.isclose(float(TASK.loss(sums, counts)), float(expected.loss), rel_tol=1e-4)
    metrics = TASK.metrics({name: float(value) for name, value in sums.items()}, counts)
    assert math.isclose(metrics["squared_error"], float(expected.loss), rel_tol=1e-4)


def test_products_and_shapes_are_those_of_one_output():
    products = {product.name: product for product in TASK.products(MODEL, rows=2, length=12, slots={"examples": 3})}
    assert (products["head: pooler"].m, products["head: classifier"].m, products["head: classifier"].n) == (6, 6, 1)
    assert TASK.parameters(MODEL)["classifier.weight"] == (1, MODEL.hidden_size)
