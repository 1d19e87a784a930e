"""Recipes for benchmarks of the step, each with a default batch, and the time of its matrix products alone."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from bert_horovod.batches.packing import most_sequences
from bert_horovod.batches.text.mask_rates import full_row_slots, mask_rate
from bert_horovod.costs.derived import VOCABULARY, Product, matrix_products, training_flops
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runtime import lazy_tensorflow as tf


class Size(NamedTuple):
    """A model size, and the batch that is measured unless flags give another."""

    model: dict[str, int]  # settings that differ from the recipe's defaults
    rows: int
    length: int


SIZES = {
    "mini": Size(
        {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}, 64, 64
    ),
    "small": Size(
        {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}, 16, 128
    ),
    "base": Size({}, 16, 128),
    "large": Size(
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}, 4, 128
    ),
}
TRACED_STEPS = 2  # in the TensorBoard trace of `bench step --trace`


def size_recipe(name: str, overrides: list[str], rows: int | None = None, length: int | None = None) -> Recipe:
    """The recipe of one of SIZES, a step of one micro-batch of rows that one sequence fills.

    `rows` and `length` replace its own. Raises UserError as recipe_from_table does.
    """
    size = SIZES[name]
    table = {
        "model": size.model,
        "data": {"packing": False},
        "phase": [{"sequence_length": length or size.length}],
        "execution": {"micro_batch": rows or size.rows},
    }
    return recipe_from_table(table, overrides)


def row_slots(recipe: Recipe, phase: Phase, most: bool = True) -> tuple[int, int]:
    """Slots of a row, for masked positions and for sequences: with packing, about the most that any row may need.

    `most`: in the steps of the phase that mask most; else as many masked positions as its steps have on average.
    """
    length = phase.sequence_length
    if not recipe.data.packing:
        slots = full_row_slots(recipe, phase)
        return slots.most if most else slots.mean, 1
    sequences, stairs = most_sequences(length), mask_rate(recipe, phase).stairs
    masked = 1 + math.ceil((max(stairs) if most else statistics.mean(stairs)) * length)  # + 1: each sequence rounds
    return max(sequences, min(masked, length)), sequences


def step_products(recipe: Recipe, layers: int = 0) -> list[Product]:
    """The matrix products of a forward pass over one micro-batch of the first phase; one sequence fills each row.

    `layers`: products of this many upper layers and the heads only; 0: of all layers.
    """
    length, slots = recipe.phase[0].sequence_length, full_row_slots(recipe, recipe.phase[0]).mean
    model = replace(recipe.model, num_hidden_layers=layers or recipe.model.num_hidden_layers)
    return matrix_products(model, recipe.execution.micro_batch, length, slots, 1, recipe.objective.pairs)


def step_flops(recipe: Recipe) -> float:
    """Floating point operations of the matrix products, forward and backward, of the micro-batch of step_products."""
    return training_flops(
        lambda model: step_products(recipe, model.num_hidden_layers), recipe.model, recipe.phase[0].trained_layers
    )


def describe_recipe(recipe: Recipe) -> str:
    """The configuration in a few words."""
    model, recompute = recipe.model, recipe.execution.recompute
    return (
        f"{model.num_hidden_layers} x {model.hidden_size}, {recipe.execution.micro_batch} rows x "
        f"{recipe.phase[0].sequence_length}, {recipe.numerics.precision}, {recipe.optimizer.name}, "
        f"XLA {recipe.execution.xla}{f', recompute {recompute}' * (recompute != 'none')}"
    )


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

    Products of the same size are timed once. `dtype`: float32, bfloat16 or float16.
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
