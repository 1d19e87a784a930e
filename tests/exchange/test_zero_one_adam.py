"""0/1 Adam against its rule in NumPy."""

import pytest

from tests.exchange.moments import STEPS, assert_follows, moments_recipe, toy_run
from tests.exchange.published import zero_one_adam

SLOW = pytest.mark.slow
RECIPES = {
    form: moments_recipe("zero_one_adam", form=form, interval=4, variance_updates=3)
    for form in ("normalized", "published")
}
LEARNING = 12
DENSE = {1, 2, 3, 5, 7, 9}  # three in every step, three in every second, then every fourth
SYNCS = {13, 14, 15, 16, 18, 20, 22, 24, 28}  # the rate of step 17 is half the peak, that of step 25 a quarter


@pytest.mark.parametrize("form", ["normalized", pytest.param("published", marks=SLOW)])
def test_two_ranks_follow_the_rule_from_sync_to_sync(two_ranks, form):
    recipe = RECIPES[form]
    ranks = [answer.value for answer in two_ranks.run(toy_run, recipe)]
    assert_follows(ranks, zero_one_adam(recipe, STEPS, LEARNING, DENSE, SYNCS))
