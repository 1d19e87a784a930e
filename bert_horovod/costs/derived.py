"""Numbers that follow from a recipe and a world; every place that needs one gets it here."""

import math
from dataclasses import dataclass

from bert_horovod.batches.masks import full_row_slots
from bert_horovod.batches.positions import micro_batch_count
from bert_horovod.costs.memory_estimate import memory_bytes
from bert_horovod.costs.products import matrix_products
from bert_horovod.model.parameters import DECODER_BIAS, Shapes, pretraining_shapes
from bert_horovod.recipe.sections import Model, Phase, Recipe


@dataclass(frozen=True)
class Derived:
    """What a phase amounts to in a world."""

    micro_batches: int  # per rank and step
    tokens_per_step: int  # positions, padding included, over all ranks
    parameters: int
    flops_per_row: float  # forward and backward, of matrix products; a pre-training's
    memory_bytes: int  # of a rank: an estimate, see memory.py


def derive(
    recipe: Recipe,
    phase: Phase,
    world_size: int,
    masked_slots: int | None = None,
    sequences: int = 1,
    gpu: bool = False,
    shapes: Shapes | None = None,
) -> Derived:
    """Compute a phase's derived numbers; raises UserError if the ranks cannot share the batch.

    `masked_slots` and `sequences` are those of a row, at most; before rows exist, those of a row of one sequence.
    `gpu`: whether ranks have one. `shapes`: the task's parameters; None: those of pre-training.
    """
    if shapes is None:
        shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    if masked_slots is None:
        masked_slots = full_row_slots(recipe.objective, phase.sequence_length) if DECODER_BIAS in shapes else 0
    micro_batches = micro_batch_count(phase.global_batch, world_size, recipe.execution.micro_batch)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return Derived(
        micro_batches=micro_batches,
        tokens_per_step=phase.global_batch * phase.sequence_length,
        parameters=parameters,
        flops_per_row=flops_per_row(
            recipe.model, phase.sequence_length, masked_slots, sequences, recipe.objective.pairs
        ),
        memory_bytes=memory_bytes(
            recipe, shapes, phase.sequence_length, masked_slots, sequences, micro_batches, world_size, gpu
        ),
    )


def describe(recipe: Recipe, world_size: int, gpu: bool = False, shapes: Shapes | None = None) -> str:
    """What a run amounts to in a world, as lines for people; the arguments are those of `derive`."""
    lines = []
    for i, phase in enumerate(recipe.phase):
        derived = derive(recipe, phase, world_size, gpu=gpu, shapes=shapes)
        lines.append(
            f"phase {i}: {phase.steps:,} steps of {phase.global_batch:,} rows x {phase.sequence_length} = "
            f"{derived.tokens_per_step:,} tokens; {derived.micro_batches} micro-batch(es) of "
            f"{recipe.execution.micro_batch} per rank; "
            f"memory about {derived.memory_bytes / 2**30:.1f} GiB a rank (estimate)"
        )
    numerics = recipe.numerics
    lines.append(f"parameters: {derived.parameters:,}; precision {numerics.precision}, wire {numerics.wire}")
    return "\n".join(lines)


def flops_per_row(model: Model, length: int, masked_slots: int, sequences: int, pairs: bool) -> float:
    """Floating point operations of a row's matrix products, forward and backward; see costs/products.py."""
    return 3.0 * sum(product.flops for product in matrix_products(model, 1, length, masked_slots, sequences, pairs))
