"""The ways to sum over ranks that a recipe leaves open."""

import pytest

from bert_horovod.recipe.sections import reductions
from tests.toys import toy_recipe


@pytest.mark.parametrize(
    ("wire", "execution", "expected"),
    [
        ("float32", {"bucket_bytes": "auto"}, ("ring",)),
        ("float16", {"bucket_bytes": "auto"}, ("ring", "two_step")),
        ("float16", {"bucket_bytes": 1000}, ("ring",)),
        ("float16", {"bucket_bytes": 1000, "reduction": "two_step"}, ("two_step",)),
        ("float16", {"bucket_bytes": "auto", "reduction": "ring"}, ("ring",)),
        ("int8", {"bucket_bytes": 1000}, ("two_step",)),
    ],
)
def test_ways_to_sum_are_open_where_they_are_measured_and_the_recipe_names_none(wire, execution, expected):
    assert reductions(toy_recipe(numerics={"wire": wire}, execution=execution)) == expected
