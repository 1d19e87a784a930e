"""The model's parameters: names as Hugging Face's, order, groups and initial values."""

import dataclasses
import math

import numpy as np
import pytest

from bert_horovod.model.parameters import (
    WORD_EMBEDDINGS,
    backward_blocks,
    decays,
    grown_from,
    initial_values,
    layer_prefix,
    query_key_or_value,
    trained_shapes,
    update_groups,
)
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes, pretraining_shapes
from bert_horovod.recipe.sections import Model
from tests.model.reference import MODEL

SHAPES = pretraining_shapes(MODEL, pairs=True)


def test_bert_base_has_the_published_number_of_parameters():
    with_pairs, without, classifier = (
        sum(map(math.prod, shapes.values()))
        for shapes in (
            pretraining_shapes(Model(), pairs=True),
            pretraining_shapes(Model(), pairs=False),
            encoder_shapes(Model(), pooler=True) | classifier_shapes(Model(), labels=2),
        )
    )
    assert with_pairs == 110_106_428  # BertForPreTraining in transformers
    assert with_pairs - without == 768 * 768 + 768 + 2 * 768 + 2  # pooler and pair head
    assert classifier == 109_483_778  # BertForSequenceClassification in transformers


def test_biases_and_layer_norm_are_not_decayed():
    layer = layer_prefix(0)
    for name in (
        WORD_EMBEDDINGS,
        f"{layer}attention.self.query.weight",
        "cls.seq_relationship.weight",
        "classifier.weight",
    ):
        assert decays(name)
    for name in (
        *(f"{layer}attention.self.query.bias", f"{layer}output.LayerNorm.weight", f"{layer}output.LayerNorm.bias"),
        *("cls.predictions.transform.LayerNorm.weight", "cls.predictions.bias", "classifier.bias"),
    ):
        assert not decays(name)


def test_query_key_and_value_are_told_by_name():
    assert query_key_or_value("bert.encoder.layer.1.attention.self.query.weight") == "attention.self.query"
    assert query_key_or_value("bert.encoder.layer.10.attention.self.value.bias") == "attention.self.value"
    for name in ("bert.encoder.layer.1.attention.output.dense.weight", "cls.predictions.bias"):
        assert query_key_or_value(name) is None


def test_matrices_are_updated_alone_and_vectors_of_equal_size_and_decay_together():
    groups = update_groups(SHAPES)
    assert sorted(name for group in groups for name in group) == sorted(SHAPES)
    for group in groups:
        assert len({SHAPES[name] for name in group}) == len({decays(name) for name in group}) == 1
        assert len(group) == 1 or len(SHAPES[group[0]]) == 1
    vectors = [group for group in groups if len(SHAPES[group[0]]) == 1]
    assert len(vectors) == len({(SHAPES[name], decays(name)) for name in SHAPES if len(SHAPES[name]) == 1})


def test_blocks_are_in_backward_order_and_hold_every_parameter_once():
    shapes = pretraining_shapes(Model(num_hidden_layers=12), pairs=True)
    heads, *layers, embeddings = backward_blocks(list(shapes))
    assert sorted(name for names in (heads, *layers, embeddings) for name in names) == sorted(shapes)
    assert WORD_EMBEDDINGS in heads
    assert len(layers) == 12
    for i, names in enumerate(reversed(layers)):
        assert all(name.startswith(layer_prefix(i)) for name in names)
    assert all(name.startswith("bert.embeddings.") for name in embeddings)


@pytest.mark.parametrize("trained_layers", [0, 12])
def test_everything_trains_unless_some_layers_do_not(trained_layers):
    shapes = pretraining_shapes(Model(num_hidden_layers=12), pairs=True)
    assert list(trained_shapes(shapes, Model(num_hidden_layers=12), trained_layers)) == list(shapes)


def test_the_upper_layers_and_the_heads_train_without_the_tables():
    shapes = pretraining_shapes(Model(num_hidden_layers=12), pairs=True)
    trained = list(trained_shapes(shapes, Model(num_hidden_layers=12), 2))
    assert {name.split(".")[3] for name in trained if name.startswith("bert.encoder.")} == {"10", "11"}
    heads = [name for name in trained if not name.startswith("bert.encoder.")]
    assert {name.rpartition(".")[0] for name in heads} == {
        "bert.pooler.dense",
        "cls.seq_relationship",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions",
    }
    assert trained == [name for name in shapes if name in trained]


@pytest.mark.parametrize(
    ("before", "layers", "grow", "sources"),
    [
        (3, 6, "stack", [0, 1, 2, 0, 1, 2]),
        (2, 6, "stack", [0, 1, 0, 1, 0, 1]),
        (3, 6, "top", [0, 1, 2, 0, 1, 2]),
        (6, 9, "top", [0, 1, 2, 3, 4, 5, 3, 4, 5]),
        (11, 12, "top", [*range(11), 10]),
    ],
)
def test_new_layers_come_from_old_ones(before, layers, grow, sources):
    name = "attention.output.LayerNorm.bias"
    origins = [grown_from(layer_prefix(layer) + name, before, layers, grow) for layer in range(layers)]
    assert origins == [layer_prefix(source) + name for source in sources]
    assert grown_from(WORD_EMBEDDINGS, before, layers, grow) == WORD_EMBEDDINGS


def test_an_initial_tensor_depends_on_the_seed_and_its_name_alone():
    first = initial_values(SHAPES, MODEL.initializer_range, seed=3)
    other_sizes = dataclasses.replace(MODEL, num_hidden_layers=5, intermediate_size=24, type_vocab_size=3)
    second = initial_values(pretraining_shapes(other_sizes, pairs=False), other_sizes.initializer_range, seed=3)
    same = [name for name in first if name in second and first[name].shape == second[name].shape]
    assert len(same) > 20
    for name in same:
        np.testing.assert_array_equal(first[name], second[name])


def test_initial_weights_differ_by_seed_and_by_name():
    first, second = (initial_values(SHAPES, MODEL.initializer_range, seed=seed) for seed in (3, 4))
    weights = [name for name in first if not name.endswith((".bias", "LayerNorm.weight"))]
    starts = {tuple(initial[name].flat[:8]) for initial in (first, second) for name in weights}
    assert len(starts) == 2 * len(weights)


def test_initial_weights_are_normal_cut_off_at_two_standard_deviations():
    model = Model(
        vocab_size=2000,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.05,
    )
    initial = initial_values(pretraining_shapes(model, pairs=True), model.initializer_range, seed=0)
    for name, value in initial.items():
        if name.endswith("LayerNorm.weight"):
            assert (value == 1).all()
        elif name.endswith(".bias"):
            assert (value == 0).all()
        else:
            assert np.abs(value).max() <= 0.05 * 2 * (1 + 1e-6)
    words = initial[WORD_EMBEDDINGS]
    assert abs(words.mean()) < 0.001
    assert np.abs(words).max() > 0.0999
    assert words.std() == pytest.approx(0.05 * 0.8796, rel=0.01)  # of a normal distribution cut off at 2
