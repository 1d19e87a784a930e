"""Loss sums and their gradients against an independent transcription; test_plain.py compares logits."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.heads import Sums, loss_sums
from tests.model.forwards import forward_of, loss_and_gradients, tensors
from tests.model.reference import MODEL, Reference, add_targets, random_batch, random_parameters

PARAMETERS = random_parameters(MODEL, pairs=True)
BATCH = add_targets(random_batch(((16,), (9,), (7, 6), (5, 4, 7))))
SHAPES = {name: value.shape for name, value in PARAMETERS.items()}
WORDS = "bert.embeddings.word_embeddings.weight"


def sums_of(
    parameters: dict[str, np.ndarray], batch: dict[str, np.ndarray] = BATCH, pairs: bool = True, **policy: Any
) -> Sums:
    return loss_sums(forward_of(MODEL, parameters, **policy), pairs, tensors(batch))


def gradients(batch: dict[str, np.ndarray] = BATCH, **policy: Any) -> dict[str, np.ndarray]:
    """Of the summed losses, by parameter."""
    return loss_and_gradients(forward_of(MODEL, PARAMETERS, **policy), SHAPES, batch, pairs=True)[1]


def reference_sums(parameters: dict[str, np.ndarray]) -> list[float]:
    reference = Reference(MODEL, parameters)
    return reference.loss_sums(BATCH, reference.encode_batch(BATCH)[-1])


def test_loss_sums_and_hits_are_those_of_the_transcription():
    # Half of the labels are what the model says, so that there are hits to count.
    batch = dict(BATCH)
    hidden = Reference(MODEL, PARAMETERS).encode_batch(batch)[-1]
    best = [
        Reference(MODEL, PARAMETERS).token_logits(state[at]).argmax(-1)
        for state, at in zip(hidden, batch["masked_positions"], strict=True)
    ]
    batch["masked_ids"] = np.where(np.arange(4) % 2, best, batch["masked_ids"]).astype(np.int32)
    expected = Reference(MODEL, PARAMETERS).loss_sums(batch, hidden)
    assert expected[1] > 2
    assert 0 < expected[3] < batch["sequence_weights"].sum()
    np.testing.assert_allclose(sums_of(PARAMETERS, batch), expected, rtol=1e-5)


def test_slots_of_weight_zero_count_nothing():
    changed = dict(BATCH)
    empty = BATCH["masked_weights"] == 0
    assert empty.any()
    changed["masked_ids"] = np.where(empty, 0, BATCH["masked_ids"])
    changed["masked_positions"] = np.where(empty, 0, BATCH["masked_positions"])
    absent = BATCH["sequence_weights"] == 0
    changed["next_sentence_labels"] = np.where(absent, 1 - BATCH["next_sentence_labels"], BATCH["next_sentence_labels"])
    np.testing.assert_allclose(sums_of(PARAMETERS, changed), sums_of(PARAMETERS), rtol=1e-6)


def test_a_batch_of_weight_zero_has_sums_and_gradients_of_zero():
    batch = BATCH | {name: np.zeros_like(BATCH[name]) for name in ("masked_weights", "sequence_weights")}
    assert [float(value) for value in sums_of(PARAMETERS, batch)] == [0.0] * 4
    for gradient in gradients(batch).values():
        assert not gradient.any()


def test_without_the_pair_head_its_sums_are_zero_and_the_masked_tokens_stay():
    parameters = {
        name: value
        for name, value in PARAMETERS.items()
        if not name.startswith(("bert.pooler", "cls.seq_relationship"))
    }
    sums, with_pairs = sums_of(parameters, pairs=False), sums_of(PARAMETERS)
    assert (float(sums.nsp_loss), float(sums.nsp_correct)) == (0.0, 0.0)
    assert (float(sums.mlm_loss), float(sums.mlm_correct)) == (
        float(with_pairs.mlm_loss),
        float(with_pairs.mlm_correct),
    )


def test_the_sums_of_a_batch_are_those_of_its_rows():
    rows = [sums_of(PARAMETERS, {name: array[i : i + 1] for name, array in BATCH.items()}) for i in range(4)]
    np.testing.assert_allclose(np.sum(rows, 0), sums_of(PARAMETERS), rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        WORDS,
        "bert.embeddings.position_embeddings.weight",
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.output.LayerNorm.weight",
        "cls.predictions.bias",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
    ],
)
def test_gradients_are_the_transcriptions_finite_differences(name):
    gradient = gradients()[name]
    step = 1e-5
    for place in np.random.default_rng(0).choice(gradient.size, min(3, gradient.size), replace=False):
        losses = []
        for sign in (1, -1):
            shifted = {key: value.astype(np.float64) for key, value in PARAMETERS.items()}
            shifted[name].flat[place] += sign * step
            sums = reference_sums(shifted)
            losses.append(sums[0] + sums[2])
        assert gradient.flat[place] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    "policy",
    [
        {"xla": "elementwise"},
        pytest.param({"xla": "layers"}, marks=pytest.mark.full),
        {"recompute": "attention"},
        {"recompute": "layer"},
        pytest.param({"xla": "elementwise", "recompute": "attention"}, marks=pytest.mark.full),
        pytest.param({"xla": "layers", "recompute": "layer"}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_gradients_are_the_same_however_they_are_computed(policy):
    expected = gradients()
    for name, gradient in gradients(**policy).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("dtype", "resolution"), [(tf.bfloat16, 2**-8), (tf.float16, 2**-11)])
def test_gradients_in_half_precision_are_those_of_float32_but_for_rounding(dtype, resolution):
    exact, half = gradients(), gradients(dtype=dtype)
    largest = max(np.linalg.norm(expected) for expected in exact.values())  # the key bias's own is 0
    for name, expected in exact.items():
        error = np.linalg.norm(half[name] - expected)
        assert error <= 16 * resolution * np.linalg.norm(expected) + resolution * largest, name


@pytest.mark.parametrize("xla", ["off", "elementwise"])
def test_of_equal_scores_the_first_entry_is_the_guess(xla):
    parameters = dict(PARAMETERS)
    for name in (WORDS, "cls.predictions.bias"):
        parameters[name] = np.zeros_like(PARAMETERS[name])
    for label in (0, 1, MODEL.vocab_size - 1):
        sums = sums_of(parameters, BATCH | {"masked_ids": np.full_like(BATCH["masked_ids"], label)}, xla=xla)
        assert float(sums.mlm_correct) == (BATCH["masked_weights"].sum() if label == 0 else 0)
        assert float(sums.mlm_loss) == pytest.approx(BATCH["masked_weights"].sum() * np.log(MODEL.vocab_size), rel=1e-5)
