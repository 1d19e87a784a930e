"""The times at which gradients exist in backward, computed from matrix products instead of measured."""

from functools import lru_cache

import numpy as np

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.costs.products import EMBEDDINGS, HEAD, LAST_LAYER, SLIDING, VOCABULARY, matrix_products
from bert_horovod.model.parameters import WORD_EMBEDDINGS, backward_blocks, layer_with_parameters, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Phase, Recipe


@lru_cache
def computed_profile(recipe: Recipe, phase: Phase, world_size: int, flops_per_s: float) -> BackwardProfile:
    """The profile of a phase's micro-batch of full rows, on a device whose time is proportional to the products' FLOPs.

    Backward does two products for each of forward, and repeats the products that `execution.recompute` does not keep.
    The gradients of a layer, or of the heads, exist after its last product; those of layers that share parameters after
    the lowest of them. Embeddings have no products, except an ALBERT's mapping. Results are cached by arguments.

    Args:
        recipe: model, objective, micro-batch and recomputation.
        phase: its length, mean number of masked positions and trained layers.
        world_size: ranks; the profile counts the rows that any of them looks up.
        flops_per_s: the rate that forward and backward reach.
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
