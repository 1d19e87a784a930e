"""The products of a forward pass, against a count by hand.

Numbers that follow from a recipe and a world, against counts by hand.
"""

import dataclasses

import pytest

from bert_horovod.costs.derived import Product, derive, describe, flops_per_row, matrix_products
from bert_horovod.costs.memory_estimate import kernel_bytes
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Objective, Phase
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table
from tests.toys import recipe_of

SMALL = Model(
    vocab_size=70,  # 128 in the product
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=16,
)


def test_operations_are_those_counted_by_hand():
    # 2 rows of 10 positions, 3 masked, 1 sequence, pairs: the last layer computes 4 positions of each row.
    whole = 20 * 8 * 24 + 2 * (4 * 10 * 10 * 4) + 20 * 8 * 8 + 2 * (20 * 8 * 20)
    last = 8 * 8 * 8 + 20 * 8 * 16 + 2 * (4 * 4 * 10 * 4) + 8 * 8 * 8 + 2 * (8 * 8 * 20)
    heads = 6 * 8 * 8 + 6 * 8 * 128 + 2 * 8 * 8 + 2 * 8 * 2
    products = matrix_products(SMALL, rows=2, length=10, masked_slots=3, sequences=1, pairs=True)
    assert sum(product.flops for product in products) == 2 * (2 * whole + last + heads)


def test_without_pairs_the_last_layer_computes_masked_positions_alone():
    products = {product.name: product for product in matrix_products(SMALL, 2, 10, 3, 5, pairs=False)}
    assert products["last layer: query"].m == 2 * 3
    assert products["last layer: scores"][1:6] == (1, 4, 3, 10, 4)
    assert products["last layer: context"][1:6] == (1, 4, 3, 4, 10)
    assert products["query, key and value"].count == 2
    assert not [name for name in products if "pooler" in name or "pairs" in name]


@pytest.mark.parametrize(("slots", "sequences"), [(10, 1), (9, 1), (8, 3)])
def test_where_heads_read_every_position_the_last_layer_is_as_the_others(slots, sequences):
    products = matrix_products(SMALL, 2, 10, slots, sequences, pairs=True)
    assert products[0] == Product("query, key and value", 3, 1, 20, 24, 8)
    assert not [product for product in products if product.name.startswith("last layer")]


def test_a_single_layer_is_the_last():
    model = Model(num_hidden_layers=1)
    assert "scores" not in {product.name for product in matrix_products(model, 2, 128, 19, 1, True)}


def test_an_albert_computes_as_much_in_its_layers_and_less_at_its_narrow_embeddings():
    bert, albert = (
        {product.name: product for product in matrix_products(model, 2, 10, 3, 1, True)}
        for model in (SMALL, dataclasses.replace(SMALL, embedding_size=4, shared_layers=1))
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


MODEL = Model(
    vocab_size=10,
    hidden_size=4,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=6,
    max_position_embeddings=8,
)
PHASE = Phase(sequence_length=8, global_batch=40, steps=3)
RECIPE = recipe_of(model=MODEL, phase=(PHASE,))


def with_execution(**settings) -> Recipe:
    return dataclasses.replace(RECIPE, execution=dataclasses.replace(RECIPE.execution, **settings))


def test_operations_of_a_row_are_those_of_its_matrix_products():
    products = matrix_products(MODEL, 1, 8, 1, 1, pairs=True)
    forward = sum(product.flops for product in products)
    assert flops_per_row(MODEL, 8, 1, 1, True) == 3 * forward  # backward twice forward
    assert derive(RECIPE, PHASE, 1).flops_per_row == 3 * forward


def test_operations_are_those_of_the_rows_that_there_are():
    packed = derive(RECIPE, PHASE, 1, slots=(2, 3))
    assert packed.flops_per_row == flops_per_row(MODEL, 8, 2, 3, True) > derive(RECIPE, PHASE, 1).flops_per_row


def test_operations_of_a_row_of_bert_base_are_six_per_parameter_and_token_and_the_attention():
    encoder = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    attention = 6 * 12 * 2 * 128 * 128 * 768
    flops = flops_per_row(Model(), 128, 19, 1, True)
    assert flops == pytest.approx(6 * 128 * encoder + attention, rel=0.05)  # and the head


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "expected"),
    [(1, 40, 1), (1, 39, 2), (1, 8, 5), (2, 20, 1), (2, 8, 3), (3, 8, 2), (40, 8, 1), (1, 64, 1)],
)
def test_micro_batches_are_as_many_as_the_global_batch_needs(world_size, micro_batch, expected):
    derived = derive(with_execution(micro_batch=micro_batch), PHASE, world_size)
    assert derived.micro_batches == expected
    assert derived.tokens_per_step == 40 * 8  # whatever the layout


def test_parameters_are_counted_with_the_heads_that_the_objective_needs():
    # embeddings (10 + 8 + 2) x 4 and LayerNorm; a layer: 4 of 4 x 4 + 4, 6 x 4 + 6, 4 x 6 + 4, 2 LayerNorms;
    # head: 4 x 4 + 4, LayerNorm, 10 biases; pooler 4 x 4 + 4 and pair head 2 x 4 + 2
    shared = (20 * 4 + 8) + 2 * (4 * 20 + 30 + 28 + 16) + (20 + 8 + 10)
    assert derive(RECIPE, PHASE, 1).parameters == shared + 20 + 10
    without = dataclasses.replace(RECIPE, objective=Objective(pair="none"))
    assert derive(without, PHASE, 1).parameters == shared


STAGED = recipe_of(
    model=Model(num_hidden_layers=6),
    phase=(Phase(num_hidden_layers=3), Phase(num_hidden_layers=6, trained_layers=3, grow="top"), Phase()),
)
LAYER_PARAMETERS = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768


def test_a_phase_counts_the_parameters_that_it_has_and_those_that_train():
    first, upper, joint = (derive(STAGED, phase, 1) for phase in STAGED.phase)
    assert first.trained == first.parameters == joint.parameters - 3 * LAYER_PARAMETERS
    assert upper.parameters == joint.parameters == joint.trained
    heads = 2 * (768 * 768 + 768) + 2 * 768 + 30522 + 2 * 768 + 2  # pooler and transform with its norm, biases, pairs
    assert upper.trained == 3 * LAYER_PARAMETERS + heads


def test_a_step_of_upper_layers_costs_forward_of_all_and_backward_of_those():
    vocabulary = 2 * 19 * 30528 * 768
    first, upper, joint = (
        flops_per_row(model, 128, 19, 1, True, trained)
        for model, trained in (
            (Model(num_hidden_layers=3), 0),
            (Model(num_hidden_layers=6), 3),
            (Model(num_hidden_layers=6), 6),
        )
    )
    assert joint - first == pytest.approx(3 * (upper - first + vocabulary))  # no gradient of the frozen table


def test_a_phase_keeps_no_state_and_no_activations_for_what_does_not_train():
    first, upper, joint = (derive(STAGED, phase, 1, capability=(9, 0)).memory_bytes for phase in STAGED.phase)
    assert first < upper + 16 * derive(STAGED, STAGED.phase[0], 1).parameters
    assert upper < joint - 4 * 2 * (
        derive(STAGED, STAGED.phase[2], 1).trained - derive(STAGED, STAGED.phase[1], 1).trained
    )


def test_a_run_says_how_deep_its_phases_are():
    lines = describe(STAGED, 1).splitlines()
    assert [line for line in lines if "train" in line] == [
        "phase 0: 3 of 6 layers; 46,315,580 parameters, of which 46,315,580 train",
        "phase 1: 6 of 6 layers, the upper 3 train; 67,579,196 parameters, of which 22,478,396 train",
    ]
    assert "layers" not in describe(recipe_of(), 1)


# A ModernBERT, whose layers attend differently


def modernbert(length: int, **model: int) -> Recipe:
    sizes = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    return recipe_from_table(
        {
            "model": {"architecture": "modernbert", **sizes, "intermediate_size": 96, "local_attention": 16, **model},
            "objective": {"pair": "none"},
            "phase": [{"sequence_length": length}],
            "execution": {"micro_batch": 2},
        }
    )


def test_windows_save_operations_and_memory_of_long_rows():
    def of(every: int, length: int) -> tuple[float, int]:
        settings = modernbert(length, global_attn_every_n_layers=every)
        derived = derive(settings, settings.phase[0], 1)
        return derived.flops_per_row, derived.memory_bytes

    (sliding, little), (full, much) = of(3, 1024), of(1, 1024)
    # Two layers compute 24 keys of each query in place of 1,024; forward and backward are 3 x 2 products.
    assert full - sliding == 3 * 2 * 2 * 2 * 1024 * (1024 - 24) * 64
    # What forward keeps: their probabilities, but three copies of keys and values.
    assert much - little == 2 * 2 * 4 * 1024 * (4 * (1024 - 24) - 4 * 64)
    assert of(3, 32) == of(1, 32)


def test_gates_and_the_mean_of_scores_are_counted():
    place, scores = 16 * 64 + 3 * 96, 2 * 4 * (2 * 1024 + 2 * 24) / 4
    row = 1024 * (4 * 3 * (place + scores) + 3 * 5 * 64) + 5 * 3 * 1000
    assert kernel_bytes(modernbert(1024), 1024, 5) == pytest.approx(2 * 4 * row)


@pytest.mark.parametrize(
    ("name", "parameters"), [("modernbert-mini", 11.1e6), ("ettin-17m", 11.8e6), ("modernbert-base", 134.4e6)]
)
def test_shipped_recipes_have_the_published_sizes(name, parameters):
    shipped = load_recipe(name)
    assert derive(shipped, shipped.phase[0], 1).parameters == pytest.approx(parameters, rel=0.005)
