"""When a run is told that its way to exchange gains nothing."""

import pytest

from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.costs.exchange_warnings import LEAST_GAIN, for_fast_link, for_one_rank
from bert_horovod.costs.exchanges import Link
from bert_horovod.recipe.sections import Recipe
from tests.toys import toy_recipe

SHAPES = {"a": (100,), "table": (50, 2)}
PROFILE = BackwardProfile(0.1, {"a": 0.9, "table": 0.2}, 1.0, {"table": 10})
SIGNS = {"exchange": {"method": "onebit_adam"}}
RARE = {"checkpoint_steps": 20, "consistency_steps": 0}


def warning(recipe: Recipe, s_per_byte: float, micro_batches: int = 1) -> str:
    return for_fast_link(recipe, SHAPES, PROFILE, Link(0.0, s_per_byte), "ring", micro_batches, "measured")


def test_a_link_that_hides_float16_gradients_leaves_nothing_to_gain():
    # On any link that leaves a's 200 bytes beside backward, 10 rows of 2 halves come after it.
    assert warning(toy_recipe(**SIGNS), 2e-4) == (
        "warning: exchange.method = 'onebit_adam' saves at most 0.008 s of a step of 1 s on this link (measured): "
        "gradients with numerics.wire = 'float16' learn more a step"
    )
    assert "numerics.wire = 'int8' saves at most" in warning(toy_recipe(numerics={"wire": "int8"}), 2e-4)


def test_a_slow_link_pays_until_a_step_has_more_micro_batches():
    recipe = toy_recipe(**SIGNS)
    slow = 1e-3  # a's 200 bytes leave in 0.2 s, and 40 bytes of rows behind them
    assert warning(recipe, slow) == ""
    exposed_s = 0.14
    enough = int(exposed_s / LEAST_GAIN) + 1
    assert warning(recipe, slow, enough)
    assert warning(recipe, slow, enough - 2) == ""


@pytest.mark.parametrize(
    "sections",
    [
        {"numerics": {"wire": "float32"}},
        {"numerics": {"wire": "float16"}},
        {
            "exchange": {"method": "dreamddp", "full_interval": 20},
            "execution": {"checkpoint_steps": 20, "consistency_steps": 0},
        },
    ],
)
def test_gradients_that_cost_no_learning_and_what_judges_itself_are_not_judged(sections):
    recipe = toy_recipe(**sections)
    assert recipe.exchange.sends_less(recipe) == ""
    assert warning(recipe, 0.0) == ""


def test_one_rank_is_told_of_a_method_for_several():
    assert "exchange.method = 'onebit_adam' with one rank sends nothing" in for_one_rank(toy_recipe(**SIGNS), 1)
    assert for_one_rank(toy_recipe(**SIGNS), 2) == ""
    assert for_one_rank(toy_recipe(numerics={"wire": "int8"}), 1) == ""
