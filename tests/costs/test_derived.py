"""Numbers that follow from a recipe and a world, against counts by hand."""

import dataclasses

import pytest

from bert_horovod.costs.derived import derive, describe, flops_per_row
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Execution, Numerics, Objective, Phase
from tests.toys import recipe_of

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
    # Multiply-adds of a layer: query, key, value, output: 4 of 8 x 4 x 4; scores and context: 2 of 8 x 8 x 4;
    # feed-forward: 8 x 4 x 6 and 8 x 6 x 4. The last layer computes the masked token and the sequence's first alone,
    # but keys and values of all. The head sees 1 masked token: 4 x 4, and 4 x 64 for the vocabulary, rounded up; the
    # pair's 4 x 4 and 4 x 2.
    layer = 4 * (8 * 4 * 4) + 2 * (8 * 8 * 4) + 2 * (8 * 4 * 6)
    last = 2 * (8 * 4 * 4) + 2 * (2 * 4 * 4) + 2 * (2 * 8 * 4) + 2 * (2 * 4 * 6)
    forward = layer + last + (4 * 4 + 4 * 64) + (4 * 4 + 4 * 2)
    assert flops_per_row(MODEL, 8, 1, 1, True) == 2 * 3 * forward  # 2 operations each, backward twice forward
    assert derive(RECIPE, PHASE, 1).flops_per_row == 2 * 3 * forward


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
    [
        (1, 40, 1),
        (1, 39, 2),
        (1, 8, 5),
        (2, 20, 1),
        (2, 8, 3),
        (3, 8, 2),
        (40, 8, 1),
        (1, 64, 1),
    ],
)
def test_micro_batches_are_as_many_as_the_global_batch_needs(world_size, micro_batch, expected):
    assert derive(with_execution(micro_batch=micro_batch), PHASE, world_size).micro_batches == expected


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 40), (2, 8), (3, 7)])
def test_tokens_of_a_step_are_those_of_the_global_batch_whatever_the_layout(world_size, micro_batch):
    assert derive(with_execution(micro_batch=micro_batch), PHASE, world_size).tokens_per_step == 40 * 8


def test_parameters_are_counted_with_the_heads_that_the_objective_needs():
    # embeddings (10 + 8 + 2) x 4 and LayerNorm; a layer: 4 of 4 x 4 + 4, 6 x 4 + 6, 4 x 6 + 4, 2 LayerNorms;
    # head: 4 x 4 + 4, LayerNorm, 10 biases; pooler 4 x 4 + 4 and pair head 2 x 4 + 2
    shared = (20 * 4 + 8) + 2 * (4 * 20 + 30 + 28 + 16) + (20 + 8 + 10)
    assert derive(RECIPE, PHASE, 1).parameters == shared + 20 + 10
    without = dataclasses.replace(RECIPE, objective=Objective(pair="none"))
    assert derive(without, PHASE, 1).parameters == shared


def test_more_ranks_than_rows_are_refused():
    with pytest.raises(UserError, match=r"global_batch = 40 .* 41 ranks"):
        derive(RECIPE, PHASE, 41)


def base_memory(length: int = 128, world_size: int = 1, precision: str = "float32", **execution) -> int:
    """The estimate for BERT-base with a global batch of 32."""
    phase = Phase(sequence_length=length, global_batch=32)
    recipe = recipe_of(phase=(phase,), numerics=Numerics(precision=precision), execution=Execution(**execution))
    return derive(recipe, phase, world_size).memory_bytes


def test_estimated_memory_grows_with_what_takes_memory():
    parameters = derive(recipe_of(), Phase(), 1).parameters
    memory_bytes = base_memory(micro_batch=32)
    assert memory_bytes > 4 * 4 * parameters  # parameters, gradients and two moments
    assert base_memory(micro_batch=32, precision="bfloat16") < memory_bytes
    assert base_memory(micro_batch=16, world_size=2) - base_memory(micro_batch=16) == -4 * parameters  # accumulators
    assert base_memory(micro_batch=8, world_size=2) > base_memory(micro_batch=8, world_size=4)


@pytest.mark.parametrize("length", [128, 512])
def test_recomputation_keeps_less(length):
    none, attention, layer = (
        base_memory(length, micro_batch=32, recompute=recompute) for recompute in ("none", "attention", "layer")
    )
    assert layer < attention < none


STAGED = recipe_of(
    model=Model(num_hidden_layers=6),
    phase=(
        Phase(num_hidden_layers=3),
        Phase(num_hidden_layers=6, trained_layers=3, grow="top"),
        Phase(),
    ),
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
