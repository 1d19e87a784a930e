"""ALBERT: narrow embeddings that are mapped to the layers' width, and layers that share parameters."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.encoder import encode
from bert_horovod.model.heads import loss_sums
from bert_horovod.model.parameters import (
    EMBEDDING_MAPPING,
    LAYERS,
    QUERY_KEY_VALUE,
    WORD_EMBEDDINGS,
    backward_blocks,
    layer_prefix,
)
from bert_horovod.model.shapes import encoder_shapes, pretraining_shapes
from bert_horovod.model.weights import cast_weights, parameter_gradients
from bert_horovod.recipe.sections import Model
from tests.model.forwards import dropout_of, forward_of, tensors
from tests.model.reference import ALBERT, add_targets, random_batch, random_parameters

ONE_LAYER = dataclasses.replace(ALBERT, shared_layers=1)
UNSHARED = dataclasses.replace(ALBERT, shared_layers=0)
PARAMETERS = random_parameters(ALBERT, pairs=True)
BATCH = add_targets(random_batch(((16,), (9,), (7, 6), (5, 4, 7))))


def with_copies(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters of UNSHARED whose layers are copies of those that ALBERT's layers share."""
    unshared = {name: value for name, value in parameters.items() if not name.startswith(LAYERS)}
    for layer in range(4):
        shared_prefix = layer_prefix(layer // 2)
        names = [name for name in parameters if name.startswith(shared_prefix)]
        unshared |= {name.replace(shared_prefix, layer_prefix(layer)): parameters[name] for name in names}
    return {name: unshared[name] for name in pretraining_shapes(UNSHARED, pairs=True)}


def gradients(model: Model, parameters: dict[str, np.ndarray], **policy: Any) -> dict[str, tf.Tensor]:
    """Dense gradients of the summed losses, by parameter."""
    forward = forward_of(model, parameters, **policy)
    with tf.GradientTape() as tape:
        tape.watch(forward.weights)
        sums = loss_sums(forward, True, tensors(BATCH))
        loss = sums.mlm_loss + sums.nsp_loss
    return parameter_gradients(tape.gradient(loss, forward.weights), {k: v.shape for k, v in parameters.items()})[0]


@pytest.mark.parametrize(
    ("sizes", "encoder_and_pooler", "whole"),
    [
        ((768, 12, 12, 3072), 11_683_584, 11_813_810),
        ((1024, 24, 16, 4096), 17_683_968, 17_847_474),
        ((4096, 12, 64, 16384), 222_595_584, 223_158_450),
    ],
)
def test_published_sizes_have_the_published_numbers_of_parameters(sizes, encoder_and_pooler, whole):
    hidden, layers, heads, inner = sizes
    model = Model(30_000, hidden, layers, heads, inner, embedding_size=128, shared_layers=1)
    assert sum(map(math.prod, encoder_shapes(model, pooler=True).values())) == encoder_and_pooler
    assert sum(map(math.prod, pretraining_shapes(model, pairs=True).values())) == whole


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"dtype": tf.bfloat16},
        {"dtype": tf.bfloat16, "recompute": "layer"},
        pytest.param({"dtype": tf.bfloat16, "xla": "layers"}, marks=pytest.mark.slow),
    ],
    ids=["float32", "bfloat16", "recomputed", "compiled"],
)
def test_a_shared_gradient_is_the_float32_sum_of_all_its_uses(policy):
    shared = gradients(ALBERT, PARAMETERS, **policy)
    uses = gradients(UNSHARED, with_copies(PARAMETERS), **policy)
    for name, gradient in shared.items():
        if not name.startswith(LAYERS):
            np.testing.assert_array_equal(tf.cast(gradient, tf.float32), tf.cast(uses[name], tf.float32), err_msg=name)
            continue
        assert gradient.dtype == tf.float32
        group = int(name.removeprefix(LAYERS)[0])
        above, mine = (
            tf.cast(uses[name.replace(layer_prefix(group), layer_prefix(layer))], tf.float32)
            for layer in (2 * group + 1, 2 * group)
        )
        assert np.any(above)
        assert np.any(mine)
        np.testing.assert_array_equal(gradient, above + mine, err_msg=name)


def test_dropout_differs_by_layer_as_where_each_has_its_own_parameters():
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    batch = tensors(random_batch())
    shared, copies = (
        encode(forward_of(dataclasses.replace(model, **rates), parameters, dropout_of(7)), batch)
        for model, parameters in ((ALBERT, PARAMETERS), (UNSHARED, with_copies(PARAMETERS)))
    )
    np.testing.assert_array_equal(shared[-1], copies[-1])
    without = encode(forward_of(ALBERT, PARAMETERS), batch)
    assert np.abs(shared[-1] - without[-1]).max() > 0.1


def test_a_shared_layer_is_the_last_block_but_one_and_the_mapping_is_with_the_embeddings():
    heads, *layers, embeddings = backward_blocks(list(pretraining_shapes(ONE_LAYER, pairs=True)))
    assert len(layers) == 1
    assert WORD_EMBEDDINGS in heads
    assert f"{EMBEDDING_MAPPING}.weight" in embeddings
    assert len(backward_blocks(list(PARAMETERS))) == 4


def test_cast_weights_hold_a_shared_layer_once():
    weights = cast_weights(tensors(random_parameters(ONE_LAYER, True)), tf.bfloat16)
    assert [name for name in weights if QUERY_KEY_VALUE in name] == [
        f"{layer_prefix(0)}{QUERY_KEY_VALUE}.{kind}" for kind in ("weight", "bias")
    ]
    assert weights[f"{EMBEDDING_MAPPING}.weight"].dtype == tf.bfloat16
