"""ModernBERT: what it does not share with other architectures, which test_conformance.py has."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import plain
from bert_horovod.model.architectures import modernbert_plain
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.encoder import encode
from bert_horovod.model.heads import masked_token_logits
from bert_horovod.model.parameters import backward_blocks, initial_values, update_groups
from bert_horovod.model.shapes import pretraining_shapes
from tests.model.forwards import dropout_of, forward_of, loss_and_gradients, tensors
from tests.model.modernbert_reference import SMALL
from tests.model.reference import LENGTH, PACKED, add_targets, random_batch, random_parameters

DROPPING = dataclasses.replace(SMALL, attention_output_dropout_prob=0.25)
PARAMETERS = random_parameters(SMALL, pairs=False)


BATCH = add_targets(random_batch()) | {"token_type_ids": np.zeros((len(PACKED), LENGTH), np.int32)}


def gradients(model=SMALL, dropout=None, **policy: Any) -> tuple[float, dict[str, np.ndarray]]:
    """The summed loss and its gradients."""
    forward = forward_of(model, PARAMETERS, dropout, **policy)
    return loss_and_gradients(forward, pretraining_shapes(model, False), BATCH, pairs=False)


def test_dropout_is_of_the_attentions_output_alone_and_in_training_alone():
    still = encode(forward_of(DROPPING, PARAMETERS), tensors(BATCH))
    np.testing.assert_array_equal(still[-1], encode(forward_of(SMALL, PARAMETERS), tensors(BATCH))[-1])
    dropped = encode(forward_of(DROPPING, PARAMETERS, dropout_of(7)), tensors(BATCH))
    np.testing.assert_array_equal(dropped[0], still[0])  # the embeddings' output
    assert np.abs(dropped[1].numpy() - still[1].numpy()).max() > 0.01


@pytest.mark.full
def test_dropout_draws_alike_compiled_or_not():
    loss, eager = gradients(DROPPING, dropout_of(7))
    largest = max(np.abs(gradient).max() for gradient in eager.values())
    for xla in ("elementwise", "layers"):
        other_loss, compiled = gradients(DROPPING, dropout_of(7), xla=xla)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for name, gradient in eager.items():
            assert np.abs(compiled[name] - gradient).max() <= 1e-5 * largest, name


def test_narrow_types_stay_near_float32():
    loss, _ = gradients()
    for dtype, band in ((tf.bfloat16, 0.03), (tf.float16, 0.01)):
        assert gradients(dtype=dtype)[0] == pytest.approx(loss, rel=band)


def test_logits_have_no_more_than_a_bias_of_the_decoder():
    biases = [name for name in PARAMETERS if name.endswith("bias")]
    assert biases == ["cls.predictions.bias"]
    hidden = tf.constant(np.random.default_rng(0).standard_normal((3, 12)), tf.float32)
    expected = plain.masked_token_logits(SMALL, tensors(PARAMETERS), hidden)
    np.testing.assert_allclose(
        masked_token_logits(forward_of(SMALL, PARAMETERS), hidden), expected, rtol=1e-4, atol=1e-5
    )


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
    assert [len(layer) for layer in layers] == [6, 6, 6, 6, 5]  # the first has no LayerNorm before attention
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
    fast = encode(forward_of(model, parameters), batch)[-1]
    start = 0
    for number, length in enumerate(lengths, 1):  # each sequence alone
        if number > 1:
            alone = {name: tensor[:, start : start + length] for name, tensor in batch.items()}
            expected = modernbert_plain.encode(model, parameters, alone)[-1]
            np.testing.assert_allclose(fast[:, start : start + length], expected, rtol=1e-3, atol=1e-3)
        start += length
