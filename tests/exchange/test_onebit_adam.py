"""1-bit Adam against its rule in NumPy, and where it begins, ends and is refused."""

import pytest

from tests.exchange.moments import STEPS, assert_follows, moments_recipe, toy_run
from tests.exchange.published import onebit_adam

pytestmark = pytest.mark.full

FORMS = ("normalized", "published")
RECIPES = {form: moments_recipe("onebit_adam", form=form) for form in FORMS}
DENSE = 12


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_follow_the_rule_over_the_freeze(two_ranks, form):
    recipe = RECIPES[form]
    ranks = [answer.value for answer in two_ranks.run(toy_run, recipe)]
    assert_follows(ranks, onebit_adam(recipe, STEPS, DENSE))
