"""Losses of answers without packing, what counts as found, and a head that transformers has saved.

finetuning/kinds/test_kinds.py compares packed logits and losses with transformers.
"""

import math

import numpy as np
import pytest

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import Forward
from bert_horovod.tasks.span import Span
from tests.model.forwards import forward_of, tensors
from tests.toy_glue import MODEL, write_checkpoint

LENGTHS = (12, 7, 5)  # of windows, one a row, padded; a last row has none


def rows() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    real = np.arange(12) < np.array([*LENGTHS, 0])[:, None]
    numbers = np.arange(4, dtype=np.int32)[:, None] * (real[:, :1])
    return {
        "input_ids": np.where(real, random.integers(5, MODEL.vocab_size, real.shape), 0).astype(np.int32),
        "token_type_ids": (real & (np.arange(12) > 2)).astype(np.int32),
        "position_ids": np.where(real, np.arange(12), 0).astype(np.int32),
        "sequence_ids": real.astype(np.int32),
        "start_positions": numbers,
        "end_positions": numbers + 2 * real[:, :1].astype(np.int32),
        "weights": real[:, :1].astype(np.float32),
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "answers", Span())


@pytest.fixture(scope="module")
def forward(directory) -> Forward:
    return forward_of(MODEL, read_directory(directory, Span()).parameters)


@pytest.mark.full
def test_a_directory_that_transformers_has_saved_is_read_with_its_head(directory, transformers, tmp_path):
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes((directory / "vocab.txt").read_bytes())
    parameters, expected = (read_directory(place, Span()).parameters for place in (tmp_path, directory))
    assert parameters.keys() == expected.keys() == Span().parameters(MODEL).keys()
    assert all(np.array_equal(parameters[name], expected[name]) for name in parameters)


def test_without_packing_the_softmax_is_over_all_positions_of_the_row(forward):
    task, batch = Span(packed=False), rows()
    outputs = task.outputs(forward, tensors(batch))
    losses, correct = [], np.ones(3)
    for side in ("start", "end"):
        logits, labels = outputs[f"{side}_logits"].numpy().astype(np.float64)[:3], batch[f"{side}_positions"][:3]
        losses.append(np.log(np.exp(logits).sum(1)) - np.take_along_axis(logits, labels, 1)[:, 0])
        correct *= logits.argmax(1) == labels[:, 0]
    sums, counts = task.sums(forward, tensors(batch)), task.batch_counts(batch)
    assert math.isclose(float(task.loss(sums, counts)), np.mean(losses), rel_tol=1e-5)
    metrics = task.metrics({name: float(value) for name, value in sums.items()}, counts)
    assert math.isclose(metrics["start_loss"], losses[0].mean(), rel_tol=1e-5)
    assert math.isclose(metrics["span_accuracy"], correct.mean(), abs_tol=1e-6)


def test_a_span_counts_as_found_where_start_and_end_are(forward):
    batch = rows()
    outputs = Span().outputs(forward, tensors(batch))
    for side in ("start", "end"):
        batch[f"{side}_positions"][0, 0] = outputs[f"{side}_logits"].numpy()[0].argmax()
    batch["weights"][1:] = 0
    sums = Span().sums(forward, tensors(batch))
    assert float(sums["span_correct"]) == 1
    batch["end_positions"][0, 0] = (batch["end_positions"][0, 0] + 1) % 12
    sums = Span().sums(forward, tensors(batch))
    assert float(sums["span_correct"]) == 0


def test_products_are_those_of_every_position_and_the_head():
    products = {product.name: product for product in Span().products(MODEL, rows=2, length=12, slots={"windows": 2})}
    assert (products["head: span"].m, products["head: span"].n, products["head: span"].k) == (24, 2, MODEL.hidden_size)
    assert products["output"].count == MODEL.num_hidden_layers
    assert [name for name in products if name.startswith("head")] == ["head: span"]
