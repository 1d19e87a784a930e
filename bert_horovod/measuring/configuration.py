"""Recipes for benchmarks of the step: models of the usual sizes, each with a default batch."""

import dataclasses
import math
import statistics
from dataclasses import replace
from typing import NamedTuple

from bert_horovod.batches.packing import most_sequences
from bert_horovod.batches.text.mask_rates import full_row_slots, mask_rate
from bert_horovod.costs.products import Product, matrix_products, training_flops
from bert_horovod.recipe.sections import Execution, Phase, Recipe
from bert_horovod.recipe_files.loading import recipe_from_table


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
XLA_CHOICES = next(entry for entry in dataclasses.fields(Execution) if entry.name == "xla").metadata["choices"]


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


def describe(recipe: Recipe) -> str:
    """The configuration in a few words."""
    model = recipe.model
    return (
        f"{model.num_hidden_layers} x {model.hidden_size}, {recipe.execution.micro_batch} rows x "
        f"{recipe.phase[0].sequence_length}, {recipe.numerics.precision}, {recipe.optimizer.name}, "
        f"XLA {recipe.execution.xla}"
    )
