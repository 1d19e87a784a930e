"""Time a step's matrix products alone, one after another: no step that computes them this way can be faster."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bert_horovod.costs.products import VOCABULARY, Product
from bert_horovod.measuring.configuration import step_products
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf

WARM_UP = 3  # untimed calls, because the first calls of a process are slow
SAMPLES = 7
LONG_ENOUGH_S = 0.004  # least length of a sample, because a call from Python takes about 0.2 ms
MOST_CALLS = 16


class ProductSeconds(NamedTuple):
    """Seconds of one matrix product C = A B and of each of its gradients."""

    product: Product
    forward_s: float
    left_s: float  # dA = dC B^T, the input's gradient
    right_s: float  # dB = A^T dC, the weight's gradient


def matrix_seconds(products: Iterable[Product], dtype: str, samples: int = SAMPLES) -> list[ProductSeconds]:
    """Time each product and its two gradients alone: medians, in the layouts that the model uses.

    Args:
        products: of a forward pass; products of the same size are timed once.
        dtype: float32, bfloat16 or float16.
        samples: calls per median.
    """
    timed: dict[tuple, tuple[float, ...]] = {}
    seconds = []
    for product in products:
        size = (product.batch, product.m, product.n, product.k, product.transposed)
        if size not in timed:
            timed[size] = _seconds(product, tf.as_dtype(dtype), samples)
        seconds.append(ProductSeconds(product, *timed[size]))
    return seconds


def total_seconds(timed: Iterable[ProductSeconds]) -> float:
    """Seconds of all products of forward and backward, one after another."""
    return sum(timing.product.count * (timing.forward_s + timing.left_s + timing.right_s) for timing in timed)


def step_seconds(recipe: Recipe) -> float:
    """Seconds of all products of a step of the recipe's first phase, forward and backward, one after another."""
    trained = recipe.phase[0].trained_layers
    if trained in (0, recipe.model.num_hidden_layers):
        return total_seconds(matrix_seconds(step_products(recipe), recipe.numerics.precision))
    products, upper = step_products(recipe), step_products(recipe, trained)
    timed = matrix_seconds([*products, *upper], recipe.numerics.precision)
    forward, backward = timed[: len(products)], timed[len(products) :]
    return sum(timing.product.count * timing.forward_s for timing in forward) + sum(
        timing.product.count * (timing.left_s + (timing.right_s if timing.product.name != VOCABULARY else 0.0))
        for timing in backward
    )


def _seconds(product: Product, dtype: tf.DType, samples: int) -> tuple[float, ...]:
    batch = (product.batch,) if product.batch > 1 else ()
    shape_b = (product.n, product.k) if product.transposed else (product.k, product.n)
    a, b, c = (
        tf.cast(tf.random.stateless_normal((*batch, *shape), [0, i]), dtype)
        for i, shape in enumerate([(product.m, product.k), shape_b, (product.m, product.n)])
    )
    if product.transposed:
        calls = (
            (lambda a, b: tf.matmul(a, b, transpose_b=True), a, b),
            (tf.matmul, c, b),
            (lambda c, a: tf.matmul(c, a, transpose_a=True), c, a),
        )
    else:
        calls = (
            (tf.matmul, a, b),
            (lambda c, b: tf.matmul(c, b, transpose_b=True), c, b),
            (lambda a, c: tf.matmul(a, c, transpose_a=True), a, c),
        )
    return tuple(_median_seconds(function, left, right, samples) for function, left, right in calls)


def _median_seconds(function: Callable, left: tf.Tensor, right: tf.Tensor, samples: int) -> float:
    seconds = _samples(function, left, right, 1, samples)
    calls = min(MOST_CALLS, math.ceil(LONG_ENOUGH_S / seconds))
    return seconds if calls == 1 else _samples(function, left, right, calls, samples) / calls


def _samples(function: Callable, left: tf.Tensor, right: tf.Tensor, calls: int, samples: int) -> float:
    """The median seconds of a graph that calls the function `calls` times, one after the other."""
    lefts = [tf.identity(left + i) for i in range(calls)]  # all different: TensorFlow computes equal products once

    def run(lefts: list[tf.Tensor], right: tf.Tensor) -> tf.Tensor:
        used_numbers: list[tf.Tensor] = []  # one number of each product, else TensorFlow drops it as unused
        for left in lefts:
            with tf.control_dependencies(used_numbers[-1:]):
                used_numbers.append(tf.reshape(function(left, right), [-1])[0])
        return tf.stack(used_numbers)

    compiled = tf.function(run, jit_compile=False, autograph=False)
    seconds = []
    for _ in range(WARM_UP + samples):
        started = time.perf_counter()
        compiled(lefts, right)
        tf.test.experimental.sync_devices()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM_UP:])
