"""Computes the bytes that ranks send in the stages of an exchange, for plans and for advice to a run.

A method says what its stages are (recipe.sections.ExchangeMethod.stages); all steps of a stage send the same. Sums are
sent at one of three times:

    during backward   of the last micro-batch: gradients, momenta as signs, chunks
    meanwhile         during the whole step: dreamddp's parts of the parameters, diloco's fragments
    after             after the step, where nothing hides them: averages of local methods, syncs of zero_one_adam

Not counted: the all-reduces of one number that tell ranks whether a step is finite, and the time of encoding.
"""

import math
from collections.abc import Sequence

from bert_horovod.costs.link import BLOCK, NUMBER_BYTES
from bert_horovod.model.parameters import Shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.reductions import reductions
from bert_horovod.recipe.sections import Phase, Recipe, Stage


def measured_buckets(recipe: Recipe) -> bool:
    """Whether buckets are cut by the measured link and backward, not only by size."""
    by_size = not recipe.exchange.overlaps or recipe.optimizer.clipping == "bucket"
    return recipe.execution.bucket_bytes == "auto" and not by_size


def stages(recipe: Recipe, phase: Phase, reduction: str = "") -> list[Stage]:
    """The stages of a phase that have steps; their shares sum to 1.

    Args:
        recipe: its exchange, wire and optimizer; already checked.
        phase: a phase of the recipe; shares depend on its steps and learning rate.
        reduction: way to sum gradients; "": the first way that the recipe allows.
    """
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    all_stages = recipe.exchange.stages(recipe, phase, shapes, reduction or reductions(recipe)[0])
    return [stage for stage in all_stages if stage.share > 0]


def number_bytes(stage: Stage) -> float:
    """Bytes per number of the parameters in the payload during backward."""
    return NUMBER_BYTES[stage.wire] * (stage.fraction + (1 / stage.chunk if stage.chunk else 0.0))


def sent_shapes(stage: Stage, shapes: Shapes) -> Shapes:
    """The shapes of what is sent of parameters with these shapes: their own, or [numbers] if the stage counts them."""
    return shapes if stage.sent is None else {name: (stage.sent[name],) for name in shapes}


def sent_bytes(stage: Stage, buckets: Sequence[int], world_size: int, inside: int = 1) -> float:
    """Bytes that a rank sends in a step; with two_step only those to other hosts.

    Args:
        stage: what is sent.
        buckets: how many numbers each has, by sent_shapes.
        world_size: ranks.
        inside: ranks of a host, which sum among themselves first; it makes no difference for the ring.

    >>> stage = Stage("all", share=1.0, wire="float16", reduction="ring")
    >>> sent_bytes(stage, [1000, 3000], world_size=4)  # 2 (n - 1) / n of 8,000 bytes
    12000.0
    """
    if world_size == 1:
        return 0.0
    ring = 2 * (world_size - 1) / world_size
    width, hosts = NUMBER_BYTES[stage.wire], world_size // inside
    meanwhile = 2 * (hosts - 1) / world_size if stage.reduction == "two_step" else ring
    sent = meanwhile * width * stage.meanwhile * sum(buckets)
    for numbers in buckets:
        chunks = -(-numbers // stage.chunk) if stage.chunk else 0
        if stage.reduction == "two_step":
            bytes_of_a_sum = 2 * (hosts - 1) * width * part_size(numbers, world_size)
        elif chunks:
            bytes_of_a_sum = ring * width * (math.ceil(stage.fraction * chunks) * stage.chunk + chunks)
        else:
            bytes_of_a_sum = ring * width * stage.fraction * numbers
        sent += bytes_of_a_sum * (stage.during_backward + stage.after)
    return sent


def part_size(numbers: int, ranks: int) -> int:
    """How many sums a rank makes in a two-step sum: whole blocks; the last rank's part ends with padding."""
    return math.ceil(numbers / (ranks * BLOCK)) * BLOCK
