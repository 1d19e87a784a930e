"""Compiled layers return for backward what it reads, once, and nothing else."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.encoder import _layer_programs, encode_at
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.kept import instead, keep, keeping
from bert_horovod.model.layers import attention_bias
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.model.weights import cast_weights, layer_weights
from bert_horovod.recipe.sections import Model
from tests.toys import TOY_MODEL

MODEL = Model(**TOY_MODEL)
ROWS, LENGTH, PLACES = 3, 32, 5


def parameters() -> dict[str, tf.Tensor]:
    values = initial_values(encoder_shapes(MODEL, pooler=False), 0.1, 0)
    return {name: tf.constant(value) for name, value in values.items()}


def dropout() -> DropoutState:
    return DropoutState(tf.constant([7], tf.uint64), tf.constant(40, tf.uint64))


def test_outside_of_a_program_keep_does_nothing():
    x = tf.constant([1.0, 2.0])
    assert keep(x) is x


def test_a_backward_program_reads_what_forward_kept_and_not_what_it_computes():
    def cube(x: tf.Tensor) -> tf.Tensor:
        return keep(x * x) * x

    x, substitute = tf.constant(2.0), tf.constant(100.0)
    with keeping() as kept:
        assert cube(x) == 8.0
    assert [float(each) for each in kept] == [4.0]
    with instead([substitute]), tf.GradientTape() as tape:
        tape.watch(x)
        y = cube(x)
    assert y == 200.0
    # (x * x)' * x + kept: the gradient passes through the kept tensor to what computed it
    assert tape.gradient(y, x) == 4.0 * 2.0 + 100.0
    assert keep(x) is x


def root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor without the operations that only hand it on."""
    while tensor.op.type in ("Identity", "IdentityN", "StopGradient"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


@pytest.mark.parametrize("at_places", [True, False], ids=["some positions", "all"])
def test_a_forward_program_returns_nothing_twice_and_none_of_its_arguments(at_places):
    policy = ComputePolicy(xla="layers")
    weights = layer_weights(cast_weights(parameters(), policy.dtype), MODEL)[0]
    ids = tf.ones([ROWS, LENGTH], tf.int32)
    queries = ids[:, :PLACES] if at_places else ids
    places = tf.constant(np.arange(ROWS * PLACES), tf.int32) if at_places else None
    x = tf.zeros([ROWS * LENGTH, MODEL.hidden_size])
    program = _layer_programs(MODEL, policy).forward.get_concrete_function(
        x, weights, dropout(), attention_bias(queries, ids), tf.constant(1, tf.uint64), places
    )
    # The result; query, key, value, probabilities, context twice; of two LayerNorms the draws, the normalised sum and
    # its scale, and one result; gelu with its argument.
    returned = [root(tensor) for tensor in program.outputs]
    assert len(returned) == len({tensor.ref() for tensor in returned}) == 16
    assert not {tensor.op.type for tensor in returned} & {"Placeholder", "Const"}


def gradients(policy: ComputePolicy, at_places: bool) -> list[np.ndarray]:
    """Of the weights and of one number a hidden state, in the last layer at some positions or at all."""
    random = np.random.default_rng(0)
    batch = {
        name: tf.constant(random.integers(0, most, (ROWS, LENGTH)), tf.int32)
        for name, most in (("input_ids", 100), ("token_type_ids", 2), ("position_ids", 32), ("sequence_ids", 2))
    }
    positions = tf.constant(random.integers(0, LENGTH, (ROWS, PLACES if at_places else LENGTH)), tf.int32)
    weights = cast_weights(parameters(), policy.dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = encode_at(Forward(MODEL, weights, policy, dropout()), batch, positions)
        total = tf.reduce_sum(tf.sin(3 * tf.cast(hidden, tf.float32)))
    weight_gradients = tape.gradient(total, list(weights.values()))
    return [tf.cast(tf.convert_to_tensor(each), tf.float32).numpy() for each in weight_gradients if each is not None]


@pytest.mark.full
@pytest.mark.parametrize(
    "at_places", [pytest.param(True, marks=pytest.mark.slow), False], ids=["some positions", "all"]
)
def test_gradients_are_those_of_plain_layers(at_places):
    expected = gradients(ComputePolicy(), at_places)
    for recompute in ("none", "attention", "layer"):
        computed = gradients(ComputePolicy(xla="layers", recompute=recompute), at_places)
        for mine, other in zip(computed, expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-3, atol=2e-5 * np.abs(other).max() + 1e-6)
