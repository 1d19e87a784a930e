"""Numbers computed from a recipe and a world size: micro-batches, tokens, parameters, FLOPs, memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bert_horovod.batches.positions import micro_batch_count
from bert_horovod.batches.text.mask_rates import RowSlots, full_row_slots, mask_rate
from bert_horovod.costs.memory_estimate import RankRows, memory_bytes
from bert_horovod.costs.products import matrix_products, training_flops
from bert_horovod.model.parameters import DECODER_BIAS, Shapes, trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.wording import gibibytes


@dataclass(frozen=True)
class Derived:
    """The derived numbers of a phase for a world size."""

    micro_batches: int  # per rank and step
    tokens_per_step: int  # positions, padding included, over all ranks
    parameters: int  # of the model in this phase
    trained: int  # how many of the parameters train
    flops_per_row: float  # of matrix products in pre-training, forward and backward
    memory_bytes: int  # of a rank, estimated: see memory_estimate.py


def derive(
    recipe: Recipe,
    phase: Phase,
    world_size: int,
    slots: tuple[int, int] | None = None,
    capability: tuple[int, int] | None = None,
    parameters: Callable[[Model], Shapes] | None = None,
) -> Derived:
    """Compute a phase's derived numbers; raises UserError if the ranks cannot share the batch.

    `slots`: a row's, at most, for masked positions and for sequences; None, for use before rows exist: those of a row
    of one sequence. `capability`: see memory_bytes. `parameters`: the method of tasks.base.Task; None: pre-training.
    """
    recipe = recipe.in_phase(phase)
    model, length, pairs = recipe.model, phase.sequence_length, recipe.objective.pairs
    shapes = parameters(model) if parameters else pretraining_shapes(model, pairs)
    trained = trained_shapes(shapes, model, phase.trained_layers)
    full = full_row_slots(recipe, phase) if DECODER_BIAS in shapes else RowSlots(0, 0)
    most, sequences = slots or (full.most, 1)
    mean = round(most * full.mean / full.most) if full.most else most  # less where the mask rate falls
    micro_batches = micro_batch_count(phase.global_batch, world_size, recipe.execution.micro_batch)
    return Derived(
        micro_batches=micro_batches,
        tokens_per_step=phase.global_batch * length,
        parameters=sum(map(math.prod, shapes.values())),
        trained=sum(map(math.prod, trained.values())),
        flops_per_row=flops_per_row(model, length, mean, sequences, pairs, phase.trained_layers),
        memory_bytes=memory_bytes(
            recipe,
            shapes,
            RankRows(length, most, sequences, micro_batches),
            world_size,
            capability,
            phase.trained_layers,
        ),
    )


def describe(
    recipe: Recipe,
    world_size: int,
    capability: tuple[int, int] | None = None,
    parameters: Callable[[Model], Shapes] | None = None,
) -> str:
    """The derived numbers of a run, as lines for people; arguments: see `derive`."""
    lines = []
    for i, phase in enumerate(recipe.phase):
        derived = derive(recipe, phase, world_size, capability=capability, parameters=parameters)
        lines.append(
            f"phase {i}: {phase.steps:,} steps of {phase.global_batch:,} rows x {phase.sequence_length} = "
            f"{derived.tokens_per_step:,} tokens; {derived.micro_batches} micro-batch(es) of "
            f"{recipe.execution.micro_batch} per rank; "
            f"memory about {gibibytes(derived.memory_bytes)} a rank (estimate)"
        )
        if phase.masked_fraction_end or phase.masked_fraction:
            slots, rate = full_row_slots(recipe, phase), mask_rate(recipe, phase)
            end = f", {rate.last:.1%} at its end" if rate.last != rate.first else ""
            lines.append(
                f"phase {i}: {rate.first:.1%} of the tokens masked{end}; {slots.most} places of a full row at most, "
                f"{slots.mean} in the mean"
            )
        if part := depth(recipe, i):
            lines.append(f"phase {i}: {part}; {derived.parameters:,} parameters, of which {derived.trained:,} train")
    numerics = recipe.numerics
    lines.append(f"parameters: {derived.parameters:,}; precision {numerics.precision}, wire {numerics.wire}")
    return "\n".join(lines)


def depth(recipe: Recipe, number: int) -> str:
    """The numbers of layers and of trained layers in a phase, for people; "" if the whole model trains."""
    phase = recipe.phase[number]
    layers = recipe.in_phase(phase).model.num_hidden_layers
    trained = phase.trained_layers or layers
    if trained == layers == recipe.model.num_hidden_layers:
        return ""
    upper = f", the upper {trained} train" if trained < layers else ""
    return f"{layers} of {recipe.model.num_hidden_layers} layers{upper}"


def flops_per_row(
    model: Model, length: int, masked_slots: int, sequences: int, pairs: bool, trained_layers: int = 0
) -> float:
    """Floating point operations of a row's matrix products, forward and backward; see costs/products.py."""
    return training_flops(
        lambda model: matrix_products(model, 1, length, masked_slots, sequences, pairs), model, trained_layers
    )
