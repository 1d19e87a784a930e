"""What a benchmark of the step runs: the usual models at the usual batches, as recipes."""

import dataclasses
from dataclasses import replace
from typing import NamedTuple

from bert_horovod.batches.masks import full_row_slots
from bert_horovod.costs.products import Product, matrix_products, training_flops
from bert_horovod.recipe.loading import recipe_from_table
from bert_horovod.recipe.sections import Execution, Recipe


class Size(NamedTuple):
    """A model, and the batch at which it is measured unless flags say otherwise."""

    model: dict[str, int]  # what differs from the recipe's defaults
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
SHORTEST_ROW = 8  # positions
XLA_CHOICES = next(entry for entry in dataclasses.fields(Execution) if entry.name == "xla").metadata["choices"]


def size_recipe(name: str, overrides: list[str], rows: int | None = None, length: int | None = None) -> Recipe:
    """The recipe of one of SIZES, its rows and length perhaps others; raises UserError as recipe_from_table does."""
    size = SIZES[name]
    table = {
        "model": size.model,
        "phase": [{"sequence_length": length or size.length}],
        "execution": {"micro_batch": rows or size.rows},
    }
    return recipe_from_table(table, overrides)


def step_products(recipe: Recipe, layers: int = 0) -> list[Product]:
    """The products of a forward pass over one micro-batch of the first phase, each row filled by one sequence.

    `layers`: of the uppermost so many layers, and the heads, alone; 0: of all.
    """
    length = recipe.phase[0].sequence_length
    slots = full_row_slots(recipe.objective, length)
    model = replace(recipe.model, num_hidden_layers=layers or recipe.model.num_hidden_layers)
    return matrix_products(model, recipe.execution.micro_batch, length, slots, 1, recipe.objective.pairs)


def step_flops(recipe: Recipe) -> float:
    """Floating point operations of the products of forward and backward over that micro-batch."""
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
