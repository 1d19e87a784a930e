"""ModernBERT: the textbook version and the training path compute what the paper says, in packed rows too."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import plain
from bert_horovod.model.architectures import modernbert_plain
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.encoder import encode, encode_at
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.heads import loss_sums, masked_token_logits
from bert_horovod.model.parameters import backward_blocks, initial_values, update_groups
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.model.weights import cast_weights, parameter_gradients
from tests.model.modernbert_reference import SMALL
from tests.model.reference import random_parameters

LENGTH = 32
PACKED = ((32,), (19,), (11, 1, 14), (9, 8, 7, 8))  # windows of 2 x 2 + 1 tokens end inside and at ends of sequences
DROPPING = dataclasses.replace(SMALL, attention_output_dropout_prob=0.25)
PARAMETERS = random_parameters(SMALL, pairs=False)


def packed_batch(seed: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shape = (len(PACKED), LENGTH)
    batch = {
        name: np.zeros(shape, np.int32) for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    }
    for row, lengths in enumerate(PACKED):
        ends = np.cumsum(lengths)
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True), 1):
            place = (row, slice(end - length, end))
            batch["input_ids"][place] = random.integers(5, SMALL.vocab_size, length)
            batch["position_ids"][place], batch["sequence_ids"][place] = np.arange(length), number
    batch["masked_positions"] = np.stack([random.permutation(sum(lengths))[:6] for lengths in PACKED]).astype(np.int32)
    batch["masked_ids"] = random.integers(5, SMALL.vocab_size, (len(PACKED), 6)).astype(np.int32)
    batch["masked_weights"] = (random.random((len(PACKED), 6)) < 0.8).astype(np.float32)
    batch["sequence_starts"] = np.zeros((len(PACKED), 1), np.int32)
    return batch


BATCH = packed_batch()


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def dropout() -> DropoutState:
    return DropoutState(tf.constant([7], tf.uint64), tf.constant(0, tf.uint64))


def forward(model=SMALL, policy=ComputePolicy(), state=None) -> Forward:  # noqa: B008
    return Forward(model, cast_weights(tensors(PARAMETERS), policy.dtype), policy, state)


def gradients(model, policy: ComputePolicy, state=None) -> tuple[float, dict[str, np.ndarray]]:
    """The summed loss, and the dense and sparse gradients added up, by parameter."""
    weights = cast_weights(tensors(PARAMETERS), policy.dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = loss_sums(Forward(model, weights, policy, state), False, tensors(BATCH)).mlm_loss
    dense, lookups = parameter_gradients(tape.gradient(loss, weights), pretraining_shapes(model, False))
    dense = {name: gradient.numpy().astype(np.float64) for name, gradient in dense.items()}
    for name, part in lookups.items():
        np.add.at(dense[name], part.indices.numpy(), part.values.numpy())
    return float(loss), dense


def close(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """Differences are measured by the largest gradient of all."""
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        assert np.abs(ours[name] - gradient).max() <= tolerance * largest, name


def test_a_last_layer_that_attends_everywhere_is_at_some_positions_what_it_is_at_all():
    model = dataclasses.replace(SMALL, num_hidden_layers=4)
    places = tf.constant(BATCH["masked_positions"])
    everywhere = tf.gather(encode(forward(model), tensors(BATCH))[-1], places, batch_dims=1)
    np.testing.assert_allclose(
        encode_at(forward(model), tensors(BATCH), places).numpy(), everywhere.numpy(), rtol=1e-4, atol=1e-5
    )


def test_dropout_is_of_the_attentions_output_alone_and_in_training_alone():
    still = encode(forward(DROPPING), tensors(BATCH))
    np.testing.assert_array_equal(still[-1], encode(forward(), tensors(BATCH))[-1])
    dropped = encode(forward(DROPPING, state=dropout()), tensors(BATCH))
    np.testing.assert_array_equal(dropped[0], still[0])  # the embeddings' output
    assert np.abs(dropped[1].numpy() - still[1].numpy()).max() > 0.01


@pytest.mark.full
def test_dropout_draws_alike_compiled_or_not():
    loss, eager = gradients(DROPPING, ComputePolicy(), dropout())
    for policy in ({"xla": "elementwise"}, {"xla": "layers"}):
        other_loss, compiled = gradients(DROPPING, ComputePolicy(**policy), dropout())
        assert other_loss == pytest.approx(loss, rel=1e-5)
        close(compiled, eager, 1e-5)


def test_narrow_types_stay_near_float32():
    loss, _ = gradients(SMALL, ComputePolicy())
    for dtype, band in ((tf.bfloat16, 0.03), (tf.float16, 0.01)):
        narrow, _ = gradients(SMALL, ComputePolicy(dtype))
        assert narrow == pytest.approx(loss, rel=band)


def test_logits_have_no_more_than_a_bias_of_the_decoder():
    biases = [name for name in PARAMETERS if name.endswith("bias")]
    assert biases == ["cls.predictions.bias"]
    hidden = tf.constant(np.random.default_rng(0).standard_normal((3, 12)), tf.float32)
    expected = plain.masked_token_logits(SMALL, tensors(PARAMETERS), hidden)
    np.testing.assert_allclose(masked_token_logits(forward(), hidden), expected, rtol=1e-4, atol=1e-5)


def test_output_matrices_begin_smaller():
    model = dataclasses.replace(SMALL, num_hidden_layers=8, hidden_size=120, initializer_range=0.1)
    values = initial_values(
        pretraining_shapes(model, False), lambda name: family_of(model).deviation(model, name), seed=0
    )
    smaller = {
        name.partition("layer.")[2].partition(".")[2] or name
        for name, value in values.items()
        if 0 < value.std() < 0.05
    }
    assert smaller == {"attention.output.dense.weight", "output.dense.weight", "cls.predictions.transform.dense.weight"}
    whole = values["bert.encoder.layer.0.attention.self.qkv.weight"].std()
    assert values["bert.encoder.layer.0.output.dense.weight"].std() == pytest.approx(whole / 4, rel=0.1)


def test_parameters_fall_into_blocks_and_groups():
    names = list(pretraining_shapes(SMALL, False))
    heads, *layers, embeddings = backward_blocks(names)
    assert "bert.encoder.LayerNorm.weight" in heads
    assert [len(layer) for layer in layers] == [
        6,
        6,
        6,
        6,
        5,
    ]  # from the last; the first has no LayerNorm before attention
    assert embeddings == ["bert.embeddings.LayerNorm.weight"]
    assert ["cls.predictions.bias"] in update_groups(pretraining_shapes(SMALL, False))


@pytest.mark.full
def test_a_row_of_8192_positions_is_computed_in_128_blocks():
    model = dataclasses.replace(SMALL, num_hidden_layers=2, hidden_size=8, num_attention_heads=1, local_attention=128)
    parameters = tensors(random_parameters(model, pairs=False))
    lengths, random = (5000, 3000, 100), np.random.default_rng(0)  # 92 positions of padding
    sequences = np.repeat([1, 2, 3, 0], [*lengths, 92])[None]
    places = np.concatenate([np.arange(length) for length in (*lengths, 92)])[None]
    batch = {"input_ids": random.integers(5, 30, (1, 8192)), "position_ids": places, "sequence_ids": sequences}
    batch = {name: tf.constant(array, tf.int32) for name, array in batch.items()}
    assert model.score_blocks(1, 8192) == (128, 64, 192)
    fast = encode(Forward(model, cast_weights(parameters, tf.float32), ComputePolicy()), batch)[-1]
    start = 0
    for number, length in enumerate(lengths, 1):  # each sequence alone
        if number > 1:
            alone = {name: tensor[:, start : start + length] for name, tensor in batch.items()}
            expected = modernbert_plain.encode(model, parameters, alone)[-1]
            np.testing.assert_allclose(fast[:, start : start + length], expected, rtol=1e-3, atol=1e-3)
        start += length
