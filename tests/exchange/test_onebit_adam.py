"""1-bit Adam against its rule in NumPy, and where it begins, ends and is refused."""

import numpy as np
import pytest

from tests.exchange.moments import BROKEN, STEPS, moments_recipe, toy_runs
from tests.exchange.published import onebit_adam

FORMS = ("normalized", "momentum", "published")
RECIPES = {form: moments_recipe("onebit_adam", form=form) for form in FORMS}
RECIPES["none"] = moments_recipe("onebit_adam", encoding="none")
DENSE = 12


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict]:
    return [answer.value for answer in two_ranks.run(toy_runs, RECIPES)]


@pytest.mark.parametrize("form", RECIPES)
def test_two_ranks_follow_the_rule_over_the_freeze(ranks, form):
    expected = onebit_adam(RECIPES[form], STEPS, DENSE, compressed=form != "none")
    for step, state in enumerate(expected, 1):
        for rank, found in enumerate(ranks):
            found = found[f"{form}.{step}"]
            assert bool(found["finite"]) == (step != BROKEN)
            for name, value in state.items():
                if name.startswith("error"):
                    if form == "none":
                        continue
                    value = value[rank]
                np.testing.assert_allclose(
                    found[name], value, rtol=1e-3, atol=2e-5 * max(1e-3, np.abs(value).max()), err_msg=f"{name} {step}"
                )
