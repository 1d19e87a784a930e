"""The table of curves: what they are kept under, compared with, and under which name their steps are timed."""

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.optimizers.schedule import whole_steps
from lab.curve_recipes import CURVES, RANKS, kept, key_of

# Of the store of books on which the kept curves were trained.
BOOKS = "84ebd8d113bcf5287662da0848caaf56bedd485542f4277a4321fe7659161921"


def test_curves_that_were_trained_are_found_under_the_keys_of_their_recipes_of_today():
    curves = kept()
    # A group without a file was not trained yet.
    fresh = {name: curve for name, curve in CURVES.items() if not curve.begin and curve.results.is_file()}
    assert {name for name, curve in fresh.items() if key_of(curve.recipe, BOOKS) in curves} == set(fresh)
    for curve in curves.values():
        assert f'"name": "{curve["name"]}"' in CURVES[curve["name"]].results.read_text(encoding="utf-8")


def test_a_continued_curve_is_kept_under_what_it_begins_with():
    recipe = CURVES["continued, int8"].recipe
    assert (recipe.numerics.wire, recipe.total_steps) == ("int8", 1200)
    shorter = CURVES["continued 400, LAMB, 256 rows, rate 8e-3"].recipe
    assert (shorter.numerics.precision, shorter.phase[0].global_batch, shorter.total_steps) == ("float32", 256, 100)
    fresh = CURVES["LAMB, 256 rows, rate 8e-3, seed 2"].recipe
    assert (fresh.optimizer.name, fresh.phase[0].global_batch, fresh.total_steps) == ("lamb", 256, 1000)
    assert len({key_of(recipe, BOOKS, start) for start in (None, "a", "b")}) == 3


@pytest.mark.parametrize(
    ("name", "timed", "baseline"),
    [
        ("int8", "int8", "float32"),
        ("MSLT, 8 layers, seed 2", "MSLT, 8 layers", "8 layers, seed 2"),
        ("continued, 1-bit Adam, longer", "1-bit Adam", "continued, float32"),
        ("continued 400, largest chunks, 0.1, dense 0.05", "largest chunks, 0.1", "continued 400, float32"),
        ("continued 400, local AdamW, 8, rate 2e-3", "local AdamW, 8", "continued 400, float32"),
        ("continued 400, 1-bit Adam, seed 2", "1-bit Adam", "continued 400, float32, seed 2"),
        ("LANS, 256 rows, rate 8e-3, seed 2", "256 rows", "ADAMW, 256 rows, rate 1e-3, seed 2"),
    ],
)
def test_a_step_is_timed_once_for_all_seeds_rates_and_stages_and_a_curve_has_a_baseline(name, timed, baseline):
    assert (CURVES[name].timed, CURVES[name].baseline) == (timed, baseline)
    assert {curve.baseline for curve in CURVES.values()} <= set(CURVES)


def test_growing_curves_do_the_operations_of_the_whole_model():
    flops = {}
    for name in ("8 layers", "stacking, 8 layers", "MSLT, 8 layers"):
        recipe = CURVES[name].recipe
        flops[name] = sum(
            phase.steps * phase.global_batch * derive(recipe, phase, RANKS).flops_per_row for phase in recipe.phase
        )
    assert list(flops.values()) == pytest.approx([flops["8 layers"]] * 3, rel=2e-3)


def test_a_longer_curve_has_as_many_dense_steps():
    usual, longer = (CURVES[f"continued, 1-bit Adam{of}"].recipe for of in ("", ", longer"))
    assert [whole_steps(recipe.total_steps, recipe.exchange.dense) for recipe in (usual, longer)] == [360, 360]
    assert (usual.total_steps, longer.total_steps) == (1200, 1400)
