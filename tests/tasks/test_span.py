"""Answers' logits and losses are those of transformers' BertForQuestionAnswering, packed and unpacked."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.weights import cast_weights
from bert_horovod.tasks.span import Span
from tests.toy_glue import MODEL, write_checkpoint

LENGTHS = (12, 7, 5)  # of windows


def windows() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(5, MODEL.vocab_size, length).astype(np.int32) for length in LENGTHS]


def rows(packed: bool) -> dict[str, np.ndarray]:
    """The windows one a row, padded, or the two short ones in one row; a last row without any."""
    layout = [[0], [1, 2], []] if packed else [[0], [1], [2], []]
    shape, slots = (len(layout), 12), 2 if packed else 1
    ids, types, places, owners = (np.zeros(shape, np.int32) for _ in range(4))
    starts, ends = (np.zeros((shape[0], slots), np.int32) for _ in range(2))
    weights = np.zeros((shape[0], slots), np.float32)
    for row, members in enumerate(layout):
        begin = 0
        for slot, number in enumerate(members):
            own = slice(begin, begin + LENGTHS[number])
            ids[row, own], owners[row, own] = windows()[number], slot + 1
            types[row, begin + 3 : own.stop] = 1
            places[row, own] = np.arange(LENGTHS[number])
            starts[row, slot], ends[row, slot] = begin + number, begin + number + 2
            weights[row, slot] = 1
            begin = own.stop
    return {
        "input_ids": ids,
        "token_type_ids": types,
        "position_ids": places,
        "sequence_ids": owners,
        "start_positions": starts,
        "end_positions": ends,
        "weights": weights,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "answers", Span())


@pytest.fixture(scope="module")
def forward(directory) -> Forward:
    policy = ComputePolicy()
    tensors = {name: tf.constant(value) for name, value in read_directory(directory, Span()).parameters.items()}
    return Forward(MODEL, cast_weights(tensors, policy.dtype), policy)


@pytest.fixture(scope="module")
def theirs(directory, transformers, torch) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """transformers' start logits, end logits and loss, window by window."""
    model, loading = transformers.AutoModelForQuestionAnswering.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    outputs = []
    for number, ids in enumerate(windows()):
        with torch.no_grad():
            output = model.eval()(
                input_ids=torch.tensor(ids[None], dtype=torch.long),
                token_type_ids=torch.tensor((np.arange(len(ids)) > 2)[None], dtype=torch.long),
                start_positions=torch.tensor([number]),
                end_positions=torch.tensor([number + 2]),
            )
        outputs.append((output.start_logits.numpy()[0], output.end_logits.numpy()[0], float(output.loss)))
    return outputs


def tensors(packed: bool) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in rows(packed).items()}


@pytest.mark.full
def test_a_directory_that_transformers_has_saved_is_read_with_its_head(theirs, directory, transformers, tmp_path):
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes((directory / "vocab.txt").read_bytes())
    parameters, expected = (read_directory(place, Span()).parameters for place in (tmp_path, directory))
    assert parameters.keys() == expected.keys() == Span().parameters(MODEL).keys()
    assert all(np.array_equal(parameters[name], expected[name]) for name in parameters)


@pytest.mark.parametrize("packed", [True, False])
def test_logits_are_those_of_transformers(forward, theirs, packed):
    outputs = Span(packed).outputs(forward, tensors(packed))
    places = [(0, 0), (1, 0), (1, 7)] if packed else [(0, 0), (1, 0), (2, 0)]
    for side, name in enumerate(("start_logits", "end_logits")):
        assert (outputs[name].dtype, outputs[name].shape) == (tf.float32, rows(packed)["input_ids"].shape)
        for (row, place), expected in zip(places, theirs, strict=True):
            logits = outputs[name].numpy()[row, place : place + len(expected[side])]
            np.testing.assert_allclose(logits, expected[side], rtol=1e-4, atol=1e-5)
    assert np.ptp(outputs["start_logits"].numpy()) > 0.1  # positions differ, so that equality says something


@pytest.mark.full
def test_the_packed_loss_is_the_mean_of_the_windows_losses_in_transformers(forward, theirs):
    task, batch = Span(), tensors(True)
    sums, counts = task.sums(forward, batch), task.batch_counts(rows(True))
    assert counts == {"windows": 3}
    assert math.isclose(float(task.loss(sums, counts)), np.mean([loss for *_, loss in theirs]), rel_tol=1e-4)


def test_without_packing_the_softmax_is_over_all_positions_of_the_row(forward):
    task, batch = Span(packed=False), rows(False)
    outputs = task.outputs(forward, tensors(False))
    losses, correct = [], np.ones(3)
    for side in ("start", "end"):
        logits, labels = outputs[f"{side}_logits"].numpy().astype(np.float64)[:3], batch[f"{side}_positions"][:3]
        losses.append(np.log(np.exp(logits).sum(1)) - np.take_along_axis(logits, labels, 1)[:, 0])
        correct *= logits.argmax(1) == labels[:, 0]
    sums, counts = task.sums(forward, tensors(False)), task.batch_counts(batch)
    assert math.isclose(float(task.loss(sums, counts)), np.mean(losses), rel_tol=1e-5)
    metrics = task.metrics({name: float(value) for name, value in sums.items()}, counts)
    assert math.isclose(metrics["start_loss"], losses[0].mean(), rel_tol=1e-5)
    assert math.isclose(metrics["span_accuracy"], correct.mean(), abs_tol=1e-6)


@pytest.mark.full
def test_a_full_row_without_packing_has_the_loss_of_transformers(forward, theirs):
    batch = {name: value[:1] for name, value in tensors(False).items()}
    sums = Span(packed=False).sums(forward, batch)
    assert math.isclose(float(Span().loss(sums, {"windows": 1})), theirs[0][2], rel_tol=1e-4)


def test_a_span_counts_as_found_where_start_and_end_are(forward):
    batch = rows(True)
    outputs = Span().outputs(forward, tensors(True))
    for side in ("start", "end"):
        batch[f"{side}_positions"][0, 0] = outputs[f"{side}_logits"].numpy()[0].argmax()
    batch["weights"][1:] = 0
    sums = Span().sums(forward, {name: tf.constant(value) for name, value in batch.items()})
    assert float(sums["span_correct"]) == 1
    batch["end_positions"][0, 0] = (batch["end_positions"][0, 0] + 1) % 12
    sums = Span().sums(forward, {name: tf.constant(value) for name, value in batch.items()})
    assert float(sums["span_correct"]) == 0


def test_products_are_those_of_every_position_and_the_head():
    products = {product.name: product for product in Span().products(MODEL, rows=2, length=12, slots={"windows": 2})}
    assert (products["head: span"].m, products["head: span"].n, products["head: span"].k) == (24, 2, MODEL.hidden_size)
    assert products["output"].count == MODEL.num_hidden_layers
    assert [name for name in products if name.startswith("head")] == ["head: span"]
