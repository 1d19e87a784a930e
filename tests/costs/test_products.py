"""The products of a forward pass, against a count by hand."""

import dataclasses

import pytest

from bert_horovod.costs.products import Product, matrix_products
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.recipe.sections import Model

MODEL = Model(
    vocab_size=70,  # 128 in the product
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=16,
)


def test_a_products_operations_are_two_per_multiply_add():
    assert Product("x", count=5, batch=7, m=2, n=3, k=4).flops == 2 * 5 * 7 * 2 * 3 * 4


def test_operations_are_those_counted_by_hand():
    # 2 rows of 10 positions, 3 masked, 1 sequence, pairs: the last layer computes 4 positions of each row.
    whole = 20 * 8 * 24 + 2 * (4 * 10 * 10 * 4) + 20 * 8 * 8 + 2 * (20 * 8 * 20)
    last = 8 * 8 * 8 + 20 * 8 * 16 + 2 * (4 * 4 * 10 * 4) + 8 * 8 * 8 + 2 * (8 * 8 * 20)
    heads = 6 * 8 * 8 + 6 * 8 * 128 + 2 * 8 * 8 + 2 * 8 * 2
    products = matrix_products(MODEL, rows=2, length=10, masked_slots=3, sequences=1, pairs=True)
    assert sum(product.flops for product in products) == 2 * (2 * whole + last + heads)


def test_without_pairs_the_last_layer_computes_masked_positions_alone():
    products = {product.name: product for product in matrix_products(MODEL, 2, 10, 3, 5, pairs=False)}
    assert products["last layer: query"].m == 2 * 3
    assert products["last layer: scores"][1:6] == (1, 4, 3, 10, 4)
    assert products["last layer: context"][1:6] == (1, 4, 3, 4, 10)
    assert products["query, key and value"].count == 2
    assert not [name for name in products if "pooler" in name or "pairs" in name]


@pytest.mark.parametrize(("slots", "sequences"), [(10, 1), (9, 1), (8, 3)])
def test_where_heads_read_every_position_the_last_layer_is_as_the_others(slots, sequences):
    products = matrix_products(MODEL, 2, 10, slots, sequences, pairs=True)
    assert products[0] == Product("query, key and value", 3, 1, 20, 24, 8)
    assert not [product for product in products if product.name.startswith("last layer")]


def test_a_single_layer_is_the_last():
    model = Model(num_hidden_layers=1)
    assert "scores" not in {product.name for product in matrix_products(model, 2, 128, 19, 1, True)}


def test_an_albert_computes_as_much_in_its_layers_and_less_at_its_narrow_embeddings():
    bert, albert = (
        {product.name: product for product in matrix_products(model, 2, 10, 3, 1, True)}
        for model in (MODEL, dataclasses.replace(MODEL, embedding_size=4, shared_layers=1))
    )
    assert albert.pop("embeddings: mapping") == Product("embeddings: mapping", 1, 1, 20, 8, 4)
    changed = {name for name in bert if bert[name] != albert[name]}
    assert bert.keys() == albert.keys()
    assert changed == {"head: transform", "head: vocabulary"}
    assert albert["head: transform"].flops == bert["head: transform"].flops // 2
    assert albert["head: vocabulary"].flops == bert["head: vocabulary"].flops // 2


def test_a_sliding_window_is_counted_in_the_blocks_in_which_it_is_computed():
    model = ModernBertModel(
        vocab_size=70,
        hidden_size=8,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=20,
        local_attention=8,
    )
    products = {product.name: product for product in matrix_products(model, 2, 32, 3, 1, pairs=False)}
    # Layers 0 and 3 attend fully, and the last is computed at 3 positions; 8 blocks of 4 queries read 12 keys.
    assert products["scores"][1:6] == (1, 2 * 2, 32, 32, 4)
    assert products["sliding window: scores"][1:6] == (2, 2 * 2 * 8, 4, 12, 4)
    assert products["sliding window: context"][1:6] == (2, 2 * 2 * 8, 4, 4, 12)
    assert products["last layer: scores"][1:6] == (1, 2 * 2, 3, 32, 4)
    assert products["intermediate"][1:6] == (3, 1, 64, 40, 8)
    assert products["output"][1:6] == (3, 1, 64, 8, 20)
    short = {product.name: product for product in matrix_products(model, 2, 16, 3, 1, pairs=False)}
    assert short["scores"][1:6] == (3, 2 * 2, 16, 16, 4)
