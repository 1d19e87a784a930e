"""Products timed alone."""

import pytest

from bert_horovod.costs.derived import Product
from bert_horovod.measuring.configuration import ProductSeconds, matrix_seconds, total_seconds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_product_has_its_three_times_and_equal_ones_the_same(dtype):
    weights = Product("weights", 3, 1, 8, 16, 32)
    products = [
        weights,
        Product("scores", 1, 4, 8, 6, 5),
        Product("context", 1, 4, 8, 5, 6, transposed=False),
        weights._replace(name="others of that size", count=1),
    ]
    timed = matrix_seconds(products, dtype, samples=2)
    assert [entry.product for entry in timed] == products
    assert all(seconds > 0 for entry in timed for seconds in entry[1:])
    assert timed[0][1:] == timed[3][1:]


def test_the_total_counts_each_product_as_often_as_it_is_computed():
    product = Product("x", 3, 1, 1, 1, 1)
    timed = [ProductSeconds(product, 1.0, 2.0, 4.0), ProductSeconds(product._replace(count=2), 10.0, 0.0, 0.0)]
    assert total_seconds(timed) == 3 * 7 + 2 * 10
