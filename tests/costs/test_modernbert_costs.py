"""Costs of a ModernBERT whose layers attend differently, against counts by hand."""

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.costs.memory_estimate import kernel_bytes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table


def recipe(length: int, **model: int) -> Recipe:
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
        settings = recipe(length, global_attn_every_n_layers=every)
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
    assert kernel_bytes(recipe(1024), 1024, 5) == pytest.approx(2 * 4 * row)


@pytest.mark.parametrize(
    ("name", "parameters"), [("modernbert-mini", 11.1e6), ("ettin-17m", 11.8e6), ("modernbert-base", 134.4e6)]
)
def test_shipped_recipes_have_the_published_sizes(name, parameters):
    shipped = load_recipe(name)
    assert derive(shipped, shipped.phase[0], 1).parameters == pytest.approx(parameters, rel=0.005)
