"""Settings that do not fit a ModernBERT, or that only a ModernBERT has: what is refused, by the name of the setting."""

import dataclasses

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import differences, recipe_from_table, recipe_to_table


def recipe(model: dict | None = None, phases: tuple[dict, ...] = ({},), **sections: dict) -> Recipe:
    objective = sections.pop("objective", {"pair": "none"})
    table = {"model": {"architecture": "modernbert"} | (model or {}), "objective": objective, "phase": list(phases)}
    return recipe_from_table(table | sections)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"objective": {"pair": "next_sentence"}},
            "objective.pair = 'next_sentence': a ModernBERT has no segment types",
        ),
        ({"model": {"hidden_size": 36}}, r"model.num_attention_heads = 12: its heads of 3 numbers cannot be turned"),
        ({"model": {"attention_output_dropout_prob": 0.001}}, r"attention_output_dropout_prob = 0.001: expected 0, or"),
        (
            {"model": {"type_vocab_size": 3}},
            r"model.type_vocab_size = 3: model.architecture = 'modernbert' has no such",
        ),
        (
            {"model": {"hidden_dropout_prob": 0.2}},
            r"model.hidden_dropout_prob = 0.2: model.architecture = 'modernbert'",
        ),
        ({"model": {"shared_layers": 1}}, r"model.shared_layers = 1: model.architecture = 'modernbert' has no such"),
        ({"model": {"local_attention": 1}}, r"model.local_attention = 1: expected at least 2"),
        (
            {"phases": ({"num_hidden_layers": 6}, {"grow": "stack"})},
            "its layers are not alike .* expected no phase.N.num_hidden_layers and no trained_layers",
        ),
        ({"phases": ({"trained_layers": 2},)}, "its layers are not alike"),
        ({"phases": ({"global_rope_theta": 0.5},)}, r"phase.0.global_rope_theta = 0.5: expected more than 1, or 0"),
        ({"phases": ({"sequence_length": 8193},)}, r"expected at most model.max_position_embeddings = 8192"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        recipe(**arguments)


def test_other_models_have_none_of_its_settings():
    with pytest.raises(UserError, match=r"model.local_attention = 64: model.architecture = 'bert' has no such setting"):
        recipe_from_table({"model": {"local_attention": 64}})
    with pytest.raises(UserError, match=r"or model.architecture = bert$"):
        recipe_from_table({"model": {"architecture": "modernbert", "shared_layers": 1}})
    with pytest.raises(
        UserError, match=r"phase.0.global_rope_theta = 10000: model.architecture = 'bert' has no rotary"
    ):
        recipe_from_table({"phase": [{"global_rope_theta": 10_000.0}]})


def test_a_phase_may_have_a_theta_of_its_own():
    two = recipe({"global_rope_theta": 10_000.0}, ({}, {"global_rope_theta": 160_000.0}))
    assert two.whole
    assert two.in_phase(two.phase[0]) is two
    longer = two.of_phase(1)
    assert longer.model.global_rope_theta == 160_000.0
    assert [longer.model.theta(layer) for layer in range(4)] == [160_000.0, 10_000.0, 10_000.0, 160_000.0]
    assert recipe_from_table(recipe_to_table(longer)) == longer
    assert recipe_from_table(recipe_to_table(two)) == two
    assert differences(two, dataclasses.replace(two, phase=longer.phase * 2))[0] == (
        "phase.0.global_rope_theta: 0.0 -> 160000.0"
    )


def test_a_window_is_computed_in_blocks_where_that_is_worth_it():
    model = recipe({"local_attention": 128}).model
    assert [model.blocks(length) for length in (128, 383, 384, 1000, 8192)] == [1, 1, 6, 16, 128]
    assert [model.score_blocks(layer, 1024) for layer in (0, 1)] == [(1, 1024, 1024), (16, 64, 192)]
