"""The heads and their loss sums against an independent transcription."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.bert import encode
from bert_horovod.model.heads import Sums, loss_sums, masked_token_logits, next_sentence_logits
from tests.model.reference import LENGTH, MODEL, Reference, add_targets, random_batch, random_parameters

PARAMETERS = random_parameters(MODEL, next_sentence=True)
BATCH = add_targets(random_batch(((16,), (9,), (7, 6), (5, 4, 7))))
# Masked positions are real tokens only, as the transcription knows no padding.
BATCH["masked_positions"] %= (BATCH["sequence_ids"] > 0).sum(1, keepdims=True).astype(np.int32)
WORDS = "bert.embeddings.word_embeddings.weight"


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def forward(
    parameters: dict[str, tf.Tensor],
    batch: dict[str, np.ndarray] = BATCH,
    next_sentence: bool = True,
    head: dict[str, tf.Tensor] | None = None,
) -> Sums:
    hidden = encode(parameters, MODEL, tensors(batch), tf.float32)[-1]
    return loss_sums(head or parameters, MODEL, next_sentence, hidden, tensors(batch))


def reference_sums(parameters: dict[str, np.ndarray]) -> list[float]:
    reference = Reference(MODEL, parameters)
    return reference.loss_sums(BATCH, reference.encode_batch(BATCH)[-1])


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_logits_are_those_of_the_transcription(act):
    model = dataclasses.replace(MODEL, hidden_act=act)
    hidden = np.random.default_rng(0).standard_normal((2, LENGTH, MODEL.hidden_size)).astype(np.float32)
    positions = np.array([[3, 0, 15], [7, 7, 1]], np.int32)
    reference = Reference(model, PARAMETERS)
    tokens = masked_token_logits(tensors(PARAMETERS), model, tf.constant(hidden), tf.constant(positions))
    pairs = next_sentence_logits(tensors(PARAMETERS), tf.constant(hidden), tf.constant(positions))
    for row in range(2):
        at = hidden[row][positions[row]].astype(np.float64)
        np.testing.assert_allclose(tokens[row], reference.token_logits(at), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(pairs[row], reference.pair_logits(at), rtol=1e-5, atol=1e-5)


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
    np.testing.assert_allclose(forward(tensors(PARAMETERS), batch), expected, rtol=1e-5)


def test_slots_of_weight_zero_count_nothing():
    changed = dict(BATCH)
    empty = BATCH["masked_weights"] == 0
    assert empty.any()
    changed["masked_ids"] = np.where(empty, 0, BATCH["masked_ids"])
    changed["masked_positions"] = np.where(empty, 0, BATCH["masked_positions"])
    absent = BATCH["sequence_weights"] == 0
    changed["next_sentence_labels"] = np.where(absent, 1 - BATCH["next_sentence_labels"], BATCH["next_sentence_labels"])
    np.testing.assert_allclose(forward(tensors(PARAMETERS), changed), forward(tensors(PARAMETERS)), rtol=1e-6)


def test_a_batch_of_weight_zero_has_sums_and_gradients_of_zero():
    batch = BATCH | {name: np.zeros_like(BATCH[name]) for name in ("masked_weights", "sequence_weights")}
    parameters = tensors(PARAMETERS)
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        sums = forward(parameters, batch)
        loss = sums.mlm_loss + sums.nsp_loss
    assert [float(value) for value in sums] == [0.0] * 4
    for gradient in tape.gradient(loss, parameters).values():
        assert not tf.convert_to_tensor(gradient).numpy().any()


def test_without_the_pair_head_its_sums_are_zero_and_the_masked_tokens_stay():
    parameters = tensors(
        {
            name: value
            for name, value in PARAMETERS.items()
            if not name.startswith(("bert.pooler", "cls.seq_relationship"))
        }
    )
    sums, both = forward(parameters, next_sentence=False), forward(tensors(PARAMETERS))
    assert (float(sums.nsp_loss), float(sums.nsp_correct)) == (0.0, 0.0)
    assert (float(sums.mlm_loss), float(sums.mlm_correct)) == (float(both.mlm_loss), float(both.mlm_correct))


def test_the_sums_of_a_batch_are_those_of_its_rows():
    rows = [forward(tensors(PARAMETERS), {name: array[i : i + 1] for name, array in BATCH.items()}) for i in range(4)]
    np.testing.assert_allclose(np.sum(rows, 0), forward(tensors(PARAMETERS)), rtol=1e-5)


def test_the_gradient_of_the_tied_embeddings_is_the_lookups_and_the_heads_together():
    tied, lookup, head = (tensors(PARAMETERS) for _ in range(3))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([tied, lookup, head])
        together = forward(tied).mlm_loss
        apart = forward(lookup, head=head).mlm_loss
    found = tf.convert_to_tensor(tape.gradient(together, tied[WORDS])).numpy()
    parts = [tf.convert_to_tensor(tape.gradient(apart, part[WORDS])).numpy() for part in (lookup, head)]
    assert all(np.abs(part).max() > 0.01 for part in parts)
    np.testing.assert_allclose(found, parts[0] + parts[1], rtol=1e-4, atol=1e-5)


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
    parameters = tensors(PARAMETERS)
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        sums = forward(parameters)
        loss = sums.mlm_loss + sums.nsp_loss
    gradient = tf.convert_to_tensor(tape.gradient(loss, parameters)[name]).numpy()
    step = 1e-5
    for place in np.random.default_rng(0).choice(gradient.size, min(3, gradient.size), replace=False):
        losses = []
        for sign in (1, -1):
            shifted = {key: value.astype(np.float64) for key, value in PARAMETERS.items()}
            shifted[name].flat[place] += sign * step
            sums = reference_sums(shifted)
            losses.append(sums[0] + sums[2])
        assert gradient.flat[place] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-3, abs=1e-3)
