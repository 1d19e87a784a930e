"""0/1 Adam against its rule in NumPy."""

import pytest

from tests.exchange.moments import STEPS, assert_follows, moments_recipe, toy_run
from tests.exchange.published import zero_one_adam

pytestmark = pytest.mark.full

SLOW = pytest.mark.slow
RECIPES = {
    form: moments_recipe("zero_one_adam", warmup, form=form, interval=4, variance_updates=3)
    for form, warmup in (("normalized", 0.1), ("published", 0.0))
}
LEARNING = 12
# Three in every step, three in every second, then every fourth: behind the warm-up of three steps, or from the first.
DENSE = {"normalized": {1, 2, 3, 4, 5, 6, 8, 10, 12}, "published": {1, 2, 3, 5, 7, 9}}
# By the steps whose rate is half the peak, 19 and 17, and a quarter, 26 and 25.
SYNCS = {
    "normalized": {13, 14, 15, 16, 17, 18, 20, 22, 24, 28},
    "published": {13, 14, 15, 16, 18, 20, 22, 24, 28},
}


@pytest.mark.parametrize("form", ["normalized", pytest.param("published", marks=SLOW)])
def test_two_ranks_follow_the_rule_from_sync_to_sync(two_ranks, form):
    recipe = RECIPES[form]
    ranks = [answer.value for answer in two_ranks.run(toy_run, recipe)]
    assert_follows(ranks, zero_one_adam(recipe, STEPS, LEARNING, DENSE[form], SYNCS[form]))
