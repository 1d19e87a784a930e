"""1-bit LAMB against its rule in NumPy."""

import pytest

from tests.exchange.moments import STEPS, assert_follows, moments_recipe, toy_run
from tests.exchange.published import onebit_lamb

pytestmark = pytest.mark.full

SLOW = pytest.mark.slow
RECIPES = {form: moments_recipe("onebit_lamb", form=form) for form in ("normalized", "published")}
DENSE = 12


@pytest.mark.parametrize(
    ("form", "fused"),
    [("normalized", True), ("published", False), pytest.param("published", True, marks=SLOW)],
)
def test_two_ranks_follow_the_rule_over_the_freeze(two_ranks, form, fused):
    recipe = RECIPES[form]
    ranks = [answer.value for answer in two_ranks.run(toy_run, recipe, STEPS, fused)]
    assert_follows(ranks, onebit_lamb(recipe, STEPS, DENSE))
