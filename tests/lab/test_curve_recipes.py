"""Recipes of curves: what they are kept under, what they are compared with, under which name their steps are timed."""

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.optimizers.schedule import whole_steps
from lab import curve_recipes
from tests.lab.test_curves import BOOKS


def test_a_continued_curve_is_kept_under_what_it_begins_with():
    recipe = curve_recipes.recipe_of("continued, int8")
    assert (recipe.numerics.wire, recipe.total_steps) == ("int8", 1200)
    shorter = curve_recipes.recipe_of("continued 400, LAMB, 256 rows, rate 8e-3")
    assert (shorter.numerics.precision, shorter.phase[0].global_batch, shorter.total_steps) == ("float32", 256, 100)
    fresh = curve_recipes.recipe_of("LAMB, 256 rows, rate 8e-3, seed 2")
    assert (fresh.optimizer.name, fresh.phase[0].global_batch, fresh.total_steps) == ("lamb", 256, 1000)
    keys = {curve_recipes.key_of(recipe, BOOKS, start) for start in (None, "a", "b")}
    assert len(keys) == 3


def test_a_step_is_timed_once_for_all_seeds_rates_and_stages():
    assert curve_recipes.timed_name("continued 400, largest chunks, 0.1, dense 0.05") == "largest chunks, 0.1"
    assert curve_recipes.timed_name("continued 400, local AdamW, 8, rate 2e-3") == "local AdamW, 8"
    assert curve_recipes.timed_name("continued, float32, seed 2") == "float32"
    assert curve_recipes.timed_name("continued 400, LANS, 256 rows, rate 8e-3, seed 2") == "256 rows"


def test_growing_curves_do_the_operations_of_the_whole_model():
    flops = {}
    for name in curve_recipes.OF_OPERATIONS:
        recipe = curve_recipes.recipe_of(name)
        flops[name] = sum(
            phase.steps * phase.global_batch * derive(recipe, phase, curve_recipes.RANKS).flops_per_row
            for phase in recipe.phase
        )
    assert flops["stacking, 8 layers"] == pytest.approx(flops["8 layers"], rel=2e-3)
    assert flops["MSLT, 8 layers"] == pytest.approx(flops["8 layers"], rel=2e-3)


def test_a_curve_is_compared_with_the_whole_model_of_its_seed():
    assert curve_recipes.baseline_of("MSLT, 8 layers, seed 2") == "8 layers, seed 2"
    assert curve_recipes.baseline_of("8 layers") == "8 layers"
    assert curve_recipes.baseline_of("int8") == "float32"
    assert curve_recipes.baseline_of("continued, int8") == "continued, float32"
    assert curve_recipes.baseline_of("continued 400, 1-bit Adam, seed 2") == "continued 400, float32, seed 2"
    assert curve_recipes.baseline_of("LANS, 256 rows, rate 8e-3, seed 2") == "ADAMW, 256 rows, rate 1e-3, seed 2"
    assert {curve_recipes.baseline_of(name) for name in curve_recipes.CURVES} <= set(curve_recipes.CURVES)


def test_a_longer_curve_has_as_many_dense_steps():
    usual, longer = (curve_recipes.recipe_of(f"continued, 1-bit Adam{of}") for of in ("", ", longer"))
    assert [whole_steps(recipe.total_steps, recipe.exchange.dense) for recipe in (usual, longer)] == [360, 360]
    assert (usual.total_steps, longer.total_steps) == (1200, 1400)
