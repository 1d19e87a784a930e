"""Cast weights: what products read, and gradients by the parameters' names again."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.exchange.dense.reducer import with_rows
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.heads import label_sums, pooled
from bert_horovod.model.parameters import (
    CLASSIFIER,
    DECODER_BIAS,
    DECODER_WEIGHT_COPY,
    EMBEDDINGS,
    KEY,
    QUERY,
    QUERY_KEY_VALUE,
    VALUE,
    WORD_EMBEDDINGS,
    initial_values,
    is_layer_norm,
    layer_prefix,
)
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes
from bert_horovod.model.weights import CastWeights, cast_together, cast_weights, parameter_gradients
from tests.model.reference import MODEL, Reference, random_batch, random_parameters

ARRAYS = random_parameters(MODEL, pairs=True)


def same(found: dict[str, tf.Tensor], expected: dict[str, tf.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_cast_weights_are_narrow_joined_and_padded(dtype):
    weights = cast_weights({name: tf.constant(value) for name, value in ARRAYS.items()}, dtype)
    for name, value in weights.items():
        wide = name.startswith(EMBEDDINGS) or is_layer_norm(name) or name == DECODER_BIAS
        assert value.dtype == (tf.float32 if wide else dtype)
    hidden, prefix = MODEL.hidden_size, layer_prefix(1)
    assert f"{prefix}{QUERY}.weight" not in weights
    joined = weights[f"{prefix}{QUERY_KEY_VALUE}.weight"]
    assert joined.shape == (3 * hidden, hidden)
    np.testing.assert_array_equal(joined[:hidden], tf.cast(ARRAYS[f"{prefix}{QUERY}.weight"], dtype))
    decoder = weights[DECODER_WEIGHT_COPY]
    assert decoder.shape == (64, hidden)
    np.testing.assert_array_equal(decoder[: MODEL.vocab_size], tf.cast(ARRAYS[WORD_EMBEDDINGS], dtype))
    assert not np.any(decoder[MODEL.vocab_size :])


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_cast_weights_follow_the_parameters_at_a_refresh(dtype):
    variables = {name: tf.Variable(value) for name, value in ARRAYS.items()}
    weights = CastWeights(variables, dtype)
    same(weights.values(variables), cast_weights(variables, dtype))
    before = weights.values(variables)
    new = {name: tf.constant(value + 1) for name, value in ARRAYS.items()}
    for name, variable in variables.items():
        variable.assign(new[name])
    weights.refresh(new, {name: tf.cast(value, dtype) for name, value in new.items()})
    same(weights.values(variables), cast_weights(new, dtype))
    assert all(np.any(value != before[name]) for name, value in weights.values(variables).items())


@pytest.mark.parametrize(
    "name", [DECODER_BIAS, WORD_EMBEDDINGS, f"{layer_prefix(1)}{KEY}.bias", f"{layer_prefix(0)}{VALUE}.weight"]
)
def test_a_refresh_of_what_is_cast_together_with_a_parameter_is_enough(name):
    variables = {name: tf.Variable(value) for name, value in ARRAYS.items()}
    weights = CastWeights(variables, tf.bfloat16)
    variables[name].assign_add(tf.ones_like(variables[name]))
    together = cast_together([name], variables)
    assert len(together) <= 3
    weights.refresh({each: tf.convert_to_tensor(variables[each]) for each in together}, narrow=None)
    same(weights.values(variables), cast_weights(variables, tf.bfloat16))


def test_a_task_without_the_masked_token_head_trains_the_word_embeddings_by_their_lookup_alone():
    shapes = encoder_shapes(MODEL, pooler=True) | classifier_shapes(MODEL, labels=3)
    parameters = initial_values(shapes, 0.3, seed=0)
    weights = cast_weights({name: tf.constant(value) for name, value in parameters.items()}, tf.float32)
    assert DECODER_WEIGHT_COPY not in weights
    batch, labels = random_batch(((16,), (9,), (1,))), np.array([0, 2, 1])

    def logits() -> tf.Tensor:
        forward = Forward(MODEL, weights, ComputePolicy())
        hidden = encode(forward, {name: tf.constant(value) for name, value in batch.items()})[-1][:, 0]
        return pooled(forward, hidden) @ tf.transpose(weights[f"{CLASSIFIER}.weight"]) + weights[f"{CLASSIFIER}.bias"]

    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss, _ = label_sums(logits(), tf.constant(labels, tf.int32), tf.ones([3]))
    dense, sparse = parameter_gradients(tape.gradient(loss, weights), shapes)
    assert {name: tuple(value.shape) for name, value in dense.items()} == shapes
    assert not np.any(dense[WORD_EMBEDDINGS])
    gradient = with_rows(dense[WORD_EMBEDDINGS], sparse[WORD_EMBEDDINGS]).numpy()
    seen = np.isin(np.arange(MODEL.vocab_size), batch["input_ids"][batch["sequence_ids"] > 0])
    np.testing.assert_array_equal(gradient.any(1), seen)

    def reference_loss(step: float) -> float:
        shifted = {name: value.astype(np.float64) for name, value in parameters.items()}
        shifted[WORD_EMBEDDINGS][batch["input_ids"][0, 3], 2] += step
        reference = Reference(MODEL, shifted)
        hidden = reference.encode_batch(batch)[-1][:, 0]
        scores = reference.dense(CLASSIFIER, np.tanh(reference.dense("bert.pooler.dense", hidden)))
        return float(np.sum(np.log(np.exp(scores).sum(-1)) - scores[np.arange(3), labels]))

    assert float(loss) == pytest.approx(reference_loss(0), rel=1e-5)
    expected = (reference_loss(1e-5) - reference_loss(-1e-5)) / 2e-5
    assert gradient[batch["input_ids"][0, 3], 2] == pytest.approx(expected, rel=1e-3, abs=1e-4)
