"""Static buckets, the gradients that share an all-reduce: cut by size, or by a link and a backward profile.

A bucket's all-reduce starts when its last gradient exists and the all-reduce before it is done. A few large buckets
start late; many small ones each add the link's latency. A step waits only for the communication that is left after the
end of backward.

The times at which gradients exist in backward, computed from matrix products instead of measured.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.costs.derived import EMBEDDINGS, HEAD, LAST_LAYER, SLIDING, VOCABULARY, matrix_products
from bert_horovod.costs.exchanges import Link
from bert_horovod.model.parameters import WORD_EMBEDDINGS, backward_blocks, layer_with_parameters, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase

DEFAULT_BYTES = 16 << 20  # of a bucket, for "auto" without a measurement
MOST_BUCKETS = 32
CAUTION = 1.5  # safety factor: during backward the link is assumed this many times slower than when measured idle
SLACK = 0.005  # a plan with fewer buckets is chosen if its step is longer by at most this share
# Larger buckets are cut, because while one bucket is on the link, the next is cast and copied, and the one before is
# cast back. More all-reduces in a queue cost almost nothing: 58 MB over 1 Gb/s take 0.50 s in one all-reduce or in 64.
LARGEST_BYTES = 8 << 20


@dataclass(frozen=True)
class BucketPlan:
    """The all-reduces of a step's gradients."""

    buckets: list[list[str]]  # parameters' names, in the order in which they are sent
    rows: str | None = None  # the table whose looked-up rows are sent alone, after all buckets; None: in its bucket
    reduction: str = "ring"  # way to sum buckets over ranks: see exchange/dense/reducer.py


@dataclass(frozen=True)
class BackwardProfile:
    """The times at which a micro-batch's gradients exist, in seconds after its start."""

    forward_s: float  # duration of forward
    ready_s: dict[str, float]  # by parameter; for an embedding table, of the dense part of its gradient
    end_s: float  # end of backward, sparse embedding gradients included
    rows: dict[str, int]  # by table: rows that any rank looked up


def _cut(names: Sequence[str], shapes: dict[str, tuple[int, ...]], most: int) -> list[list[str]]:
    """Cut names, in their order, into runs of at most `most` numbers; a larger tensor is a run of its own."""
    runs: list[list[str]] = [[]]
    taken_numbers = 0
    for name in names:
        numbers = math.prod(shapes[name])
        if runs[-1] and taken_numbers + numbers > most:
            runs.append([])
            taken_numbers = 0
        runs[-1].append(name)
        taken_numbers += numbers
    return runs


def by_size(shapes: dict[str, tuple[int, ...]], bucket_bytes: int | Literal["auto"]) -> BucketPlan:
    """Buckets of at most `bucket_bytes` of float32, in backward order; `shapes` are in forward order.

    A larger tensor has a bucket of its own.

    >>> by_size({"embeddings": (100, 4), "layer.weight": (4, 4), "layer.bias": (4,)}, bucket_bytes=80).buckets
    [['layer.bias', 'layer.weight'], ['embeddings']]
    """
    if bucket_bytes == "auto":
        bucket_bytes = DEFAULT_BYTES
    return BucketPlan(_cut(list(reversed(shapes)), shapes, bucket_bytes // 4))


def by_profile(
    shapes: dict[str, tuple[int, ...]],
    element_bytes: float,
    profile: BackwardProfile,
    link: Link,
    reduction: str = "ring",
    rows_alone: bool = True,
) -> BucketPlan:
    """The plan that is predicted to end first on a link CAUTION times slower.

    Of plans that end within SLACK of the first, the one with the fewest buckets; then buckets above LARGEST_BYTES are
    cut. `element_bytes` are those of a number on the wire, the profile is a micro-batch's, the link that of this way to
    sum. `rows_alone`: whether looked-up rows may be sent alone.
    """
    names = sorted(shapes, key=lambda name: profile.ready_s[name])
    link = link.slower(CAUTION)
    tables = [None, *(profile.rows if rows_alone else ())]
    plans = [_best(names, shapes, element_bytes, profile, link, table, reduction) for table in tables]
    best = min(plans, key=lambda plan: seconds(plan, shapes, element_bytes, profile, link))
    most = int(LARGEST_BYTES / element_bytes)
    return dataclasses.replace(best, buckets=[part for bucket in best.buckets for part in _cut(bucket, shapes, most)])


def seconds(
    plan: BucketPlan, shapes: dict[str, tuple[int, ...]], element_bytes: float, profile: BackwardProfile, link: Link
) -> float:
    """The time at which the last sum exists, in seconds after the start of the micro-batch."""
    ready = [max(_ready(name, plan.rows, profile) for name in bucket) for bucket in plan.buckets]
    ready += [profile.end_s] if plan.rows is not None else []
    free = 0.0
    for ready_s, payload in zip(ready, payload_bytes(plan, shapes, element_bytes, profile), strict=True):
        free = max(free, ready_s) + link.seconds(payload)
    return max(free, profile.end_s)


def payload_bytes(
    plan: BucketPlan, shapes: dict[str, tuple[int, ...]], element_bytes: float, profile: BackwardProfile
) -> list[float]:
    """Payload of each all-reduce, in the order in which they are sent."""
    sizes = [element_bytes * sum(math.prod(shapes[name]) for name in bucket) for bucket in plan.buckets]
    return sizes + ([rows_bytes(plan.rows, shapes, element_bytes, profile)] if plan.rows is not None else [])


def rows_bytes(table: str, shapes: dict[str, tuple[int, ...]], element_bytes: float, profile: BackwardProfile) -> float:
    """Payload of a table's looked-up rows."""
    return element_bytes * profile.rows[table] * math.prod(shapes[table][1:])


def _ready(name: str, rows: str | None, profile: BackwardProfile) -> float:
    """The time at which a gradient is complete: for a table whose rows are not sent alone, the end of backward."""
    return profile.end_s if name in profile.rows and name != rows else profile.ready_s[name]


def _best(
    names: Sequence[str],
    shapes: dict[str, tuple[int, ...]],
    element_bytes: float,
    profile: BackwardProfile,
    link: Link,
    rows: str | None,
    reduction: str,
) -> BucketPlan:
    """The best cut into buckets of parameters in the order in which their gradients exist, by dynamic programming.

    ends[k][j] is the earliest time at which the first j parameters are summed in k buckets. It is the minimum over i,
    the first parameter of the last bucket, of max(ends[k - 1][i], ready time of j - 1) + link time of i to j - 1.
    """
    names = sorted(names, key=lambda name: _ready(name, rows, profile))
    ready = np.array([_ready(name, rows, profile) for name in names])
    count = len(names)
    bytes_before = np.concatenate(([0], np.cumsum([element_bytes * math.prod(shapes[name]) for name in names])))
    payload = bytes_before[1:, None] - bytes_before
    link_s = link.latency_s + payload * link.s_per_byte
    if link.tree is not None:
        link_s = np.minimum(link_s, link.tree[0] + payload * link.tree[1])
    link_s = np.where(np.tri(count, count + 1, dtype=bool), link_s, np.inf)  # no bucket ends before it begins
    most = min(MOST_BUCKETS, count)
    ends = np.full((most + 1, count + 1), np.inf)
    begins = np.zeros((most + 1, count + 1), np.int64)
    ends[0, 0] = 0.0
    for k in range(1, most + 1):
        end_s = np.maximum(ends[k - 1], ready[:, None]) + link_s  # [end, begin]
        begins[k, 1:] = end_s.argmin(axis=1)
        ends[k, 1:] = end_s.min(axis=1)
    last = np.maximum(ends[:, count], profile.end_s)
    k = int(np.argmax(last <= last.min() * (1 + SLACK)))
    buckets: list[list[str]] = []
    end = count
    while end:
        begin = int(begins[k, end])
        buckets.insert(0, list(names[begin:end]))
        k, end = k - 1, begin
    return BucketPlan(buckets, rows, reduction)


@lru_cache
def computed_profile(recipe: Recipe, phase: Phase, world_size: int, flops_per_s: float) -> BackwardProfile:
    """The profile of a phase's micro-batch of full rows, on a device whose time is proportional to the products' FLOPs.

    Backward does two products for each of forward, and repeats the products that `execution.recompute` does not keep.
    The gradients of a layer, or of the heads, exist after its last product; those of layers that share parameters after
    the lowest of them. Embeddings have no products, except an ALBERT's mapping. The rows that any of `world_size` ranks
    looks up are counted. Results are cached by arguments.
    """
    model, pairs, rows = recipe.model, recipe.objective.pairs, recipe.execution.micro_batch
    length, trained_layers, slots = phase.sequence_length, phase.trained_layers, full_row_slots(recipe, phase).mean
    embeddings = head = frozen = whole = last = again = last_again = 0.0
    trained = trained_shapes(pretraining_shapes(model, pairs), model, trained_layers)
    products = matrix_products(model, rows, length, slots, 1, pairs)
    layers_below = model.num_hidden_layers - 1
    alike = layers_below if any(product.name.startswith(LAST_LAYER) for product in products) else layers_below + 1
    for product in products:
        flops = product.flops / product.count
        if product.name.startswith(HEAD):
            head += flops
            # A table that does not train has no gradient.
            frozen += flops if product.name == VOCABULARY and WORD_EMBEDDINGS not in trained else 0.0
        elif product.name.startswith(EMBEDDINGS):
            embeddings += flops
        else:
            scores = product.name.removeprefix(LAST_LAYER).removeprefix(SLIDING) == "scores"
            if not product.name.startswith(LAST_LAYER) and product.count < alike:
                flops *= product.count / alike  # layers attend differently: each counts with their mean
            kept_scores = {"none": True, "attention": not scores, "layer": False}[recipe.execution.recompute]
            recomputed = 0.0 if kept_scores else flops
            if product.name.startswith(LAST_LAYER):
                last, last_again = last + flops, last_again + recomputed
            else:
                whole, again = whole + flops, again + recomputed
    layers = [0.0] * model.layer_groups  # FLOPs of backward by group of layers, from the first
    for layer in range(model.num_hidden_layers):
        backward = 2 * last + last_again if last and layer == layers_below else 2 * whole + again
        layers[layer_with_parameters(model, layer)] += backward
    at = forward_s = (head + (last or whole) + layers_below * whole + embeddings) / flops_per_s
    ready_s: dict[str, float] = {}
    blocks = backward_blocks(list(trained))
    upper = layers[::-1][: len(blocks) - 2]
    for names, flops in zip(blocks, [2 * head - frozen, *upper, 2 * embeddings], strict=True):
        at += flops / flops_per_s
        ready_s |= dict.fromkeys(names, at)
    if WORD_EMBEDDINGS not in trained:
        return BackwardProfile(forward_s, ready_s, at, {})
    touched = touched_rows(model.vocab_size, world_size * rows * length)
    return BackwardProfile(forward_s, ready_s, at, {WORD_EMBEDDINGS: touched})


@lru_cache
def touched_rows(vocabulary: int, tokens: int) -> int:
    """The expected number of different words in so many tokens: sum over words of 1 - (1 - p)^tokens.

    The k-th word's frequency p is proportional to log(1 + 1 / k): Zipf's law in the form that the benchmarks'
    synthetic rows use.
    """
    share = np.log1p(1.0 / np.arange(1, vocabulary + 1)) / np.log(vocabulary + 1)
    return round(float(-np.expm1(tokens * np.log1p(-share)).sum()))
